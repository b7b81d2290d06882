"""Many runs as one dataset, read back by common query engines."""

from __future__ import annotations

import json
import math
import shutil

import duckdb
import pyarrow.dataset
import pyarrow.parquet
import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.errors import RunNotFound
from rlvitals.views.dataset import export_runs


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        with rlvitals.start(
            tmp_path / f"runs/sweep/{number}",
            name=f"run {number}",
            algorithm="kto",
            config={"lr": number},
            monitor=False,
        ) as run:
            for step in range(4):
                run.log({"loss": number + step / 10, f"only/{number}": 1.0, "note": f"step {step}"}, step=step)
    with rlvitals.start(tmp_path / "runs/odd", monitor=False) as run:
        run.log({"note": 2.0, "loss": math.nan, "run_name": 5.0}, step=0)
        run.log({"kl": 1.0}, step=1)
    return tmp_path / "runs"


def query(lake, what):
    source = f"read_parquet('{lake}/*/*.parquet', hive_partitioning = true, union_by_name = true)"
    return duckdb.sql(what.format(rows=source)).fetchall()


def test_one_query_reads_all_runs_and_groups_them_by_a_setting(folder, tmp_path):
    lake = export_runs(folder, tmp_path / "lake")
    assert (lake.runs, lake.rows, lake.passed_over) == (4, 14, [])
    found = query(
        tmp_path / "lake",
        """select (run_config->>'$.lr')::int as lr, count(*), max(loss) from {rows}
           where run_algorithm = 'kto' group by lr order by lr""",
    )
    assert found == [(number, 4, pytest.approx(number + 0.3)) for number in range(3)]


def test_the_partition_is_the_run_s_id(folder, tmp_path):
    export_runs(folder, tmp_path / "lake")
    ids = {rlvitals.open_run(path).info.id for path in rlvitals.find_runs(folder)}
    assert {row[0] for row in query(tmp_path / "lake", "select distinct run from {rows}")} == ids


def test_a_name_has_one_type_in_all_runs(folder, tmp_path):
    export_runs(folder, tmp_path / "lake")
    assert query(tmp_path / "lake", "select note from {rows} where note is not null") == [(2.0,)]
    texts = query(tmp_path / "lake", "select \"text/note\" from {rows} where run_name = 'run 1' order by step")
    assert [text for (text,) in texts] == ["step 0", "step 1", "step 2", "step 3"]
    assert query(tmp_path / "lake", 'select "metric/run_name" from {rows} where "metric/run_name" = 5') == [(5.0,)]


def test_what_was_not_logged_is_null_and_a_nan_that_was_is_a_nan(folder, tmp_path):
    export_runs(folder, tmp_path / "lake")
    odd = query(tmp_path / "lake", "select loss from {rows} where run_name = 'odd' order by step")
    assert math.isnan(odd[0][0])
    assert odd[1] == (None,)


def test_the_common_schema_opens_runs_with_different_columns_as_one_dataset(folder, tmp_path):
    lake = tmp_path / "lake"
    export_runs(folder, lake)
    schema = pyarrow.parquet.read_schema(lake / "_common_metadata")
    whole = pyarrow.dataset.dataset(lake, schema=schema.append(pyarrow.field("run", "string")), partitioning="hive")
    table = whole.to_table(columns=["run", "only/0", "only/2"])
    assert table.num_rows == 14
    assert [table["only/0"].null_count, table["only/2"].null_count, table["run"].null_count] == [10, 10, 0]


def test_a_second_export_replaces_its_runs_and_keeps_the_others(folder, tmp_path):
    lake = tmp_path / "lake"
    export_runs(folder, lake)
    with rlvitals.start(folder / "odd", resume=True, monitor=False) as run:
        run.log({"reward": 1.0}, step=2)
    again = export_runs(folder / "odd", lake)
    assert (again.runs, again.rows) == (1, 3)
    assert query(lake, "select count(*), count(distinct run) from {rows}") == [(15, 4)]
    assert {"reward", "only/1"} <= set(again.columns)


def test_copies_of_a_run_stay_apart_and_an_unreadable_one_is_named(folder, tmp_path):
    shutil.copytree(folder / "odd", folder / "odd copy")
    (folder / "sweep/1/run.json").write_text("{")
    lake = export_runs(folder, tmp_path / "lake")
    assert lake.runs == 4
    assert len(lake.passed_over) == 1
    assert "sweep/1" in lake.passed_over[0]
    assert query(tmp_path / "lake", "select count(distinct run) from {rows} where run_name = 'odd'") == [(2,)]


def test_a_folder_without_runs_is_an_error(tmp_path):
    with pytest.raises(RunNotFound, match="no run to export"):
        export_runs(tmp_path, tmp_path / "lake")


def test_the_verb_exports_a_folder_and_asks_where_to(folder, tmp_path, capsys):
    assert main(["export", str(folder), "--to", "parquet", "--output", str(tmp_path / "lake"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["runs"], facts["rows"], facts["format"]) == (4, 14, "parquet")
    assert main(["export", str(folder), "--to", "parquet"]) == 64
    assert "--output lake/" in capsys.readouterr().err
