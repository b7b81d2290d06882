"""An interpreter that has already imported torch, TRL, MLflow and others, and forks for each program the tests start.

Importing torch and TRL takes eight seconds in each child process, MLflow two and a half and matplotlib nearly one, and
some tests start three at a time. `Warm` starts one such interpreter. Inside `Warm.taking_over()`, `subprocess.Popen`
asks it for a process instead of starting a new interpreter if the program would import one of these packages. The
process is a real child of the caller with its own pid, and can be waited for and killed. torchrun and MLflow's server,
started in this way, start their processes in the same way. The processes of xdist are forked too, each with its own
copy of this interpreter, so the packages are imported once and not once per process.

A forked program can use modules that it has not imported itself. So one trainer is also started without this (`cold` in
conftest.py), and tests/train/test_imports.py checks the imports behind every dotted name that the trainers use.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import weakref
from pathlib import Path

TESTS_IMPORT = ("pandas", "scipy.stats")
"""Packages that the tests themselves import. They would take a second in each process that runs tests."""
IMPORTS = ("torch.distributed.fsdp", "transformers", "accelerate", "datasets", "peft", "trl", "mlflow",
           "matplotlib.figure", "matplotlib.backends.backend_agg", "mcp.server")  # fmt: skip
NAMES = (("transformers", ("AutoModelForCausalLM", "AutoTokenizer", "Trainer", "LlamaForCausalLM", "GPT2LMHeadModel")),
         ("trl", ("KTOTrainer", "GRPOTrainer")))  # fmt: skip
"""Both libraries import these lazily, at the first use."""

READ_AT_IMPORT = ("PYTHON", "OMP_", "MKL_", "HF_", "TRANSFORMERS_", "CUDA_", "MPL")
WRITES_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
IS_DONE_HERE = frozenset({WRITES_NO_BYTECODE, "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONIOENCODING"})
"""Variables read at the start of an interpreter whose effect `run` reproduces."""
HEAVY = ("torch", "transformers", "trl", "rlvitals.train", "mlflow", "matplotlib")
"""Packages that take long to import, by the names in a program."""
NEVER_FORKED = "wandb"
"""Its client treats a forked process as part of the process it was imported in."""
HEAVY_VERBS = ("train", "import", "plot", "mcp")
STARTING_OTHERS = ("torch.distributed.run", "mlflow")
PR_SET_CHILD_SUBREAPER = 36
XDIST = ["-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]
"""The arguments with which execnet starts `python` for a process that runs tests."""
start_cold = subprocess.Popen._execute_child
OWN_PATH = frozenset(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


PLUG_INS = ("anyio",)
"""Plug-ins of pytest that those libraries import. In a process that runs tests, pytest would warn that it is too late
to rewrite their asserts."""


class Warm:
    """The caller's end. `serve` is the other end, in a separate process."""

    inherited: Warm | None = None
    """The one that a process of xdist got when it was forked."""

    def __init__(self, near: socket.socket | None = None, *, is_light: bool = False) -> None:
        self._near, self._is_light = near, is_light
        """The socket is None until a program needs it. A light interpreter has imported torch, but not IMPORTS."""
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @classmethod
    def fork(cls) -> Warm:
        """Fork another one from a process that has not run a program yet."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            near.close()
            with open(os.devnull, "r+b") as nothing:  # a reader of this process's output must see it end
                os.dup2(nothing.fileno(), 0)
                os.dup2(nothing.fileno(), 1)
            run_and_leave(serve(far))
        far.close()
        return cls(near)

    def start(self) -> None:
        """Start the imports while the caller does something else."""
        self._near = self._near or self._start()

    def _start(self) -> socket.socket:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(far.fileno()), *(["light"] if self._is_light else [])],
                env=self._environment, pass_fds=[far.fileno()], cwd="/",
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        return near

    def close(self) -> None:
        if self._near is not None:
            self._near.close()
        if self._process is not None:
            self._process.wait()

    @contextlib.contextmanager
    def taking_over(self):
        def start(process, *given):
            self._execute_child(process, *given)

        subprocess.Popen._execute_child = start
        try:
            yield
        finally:
            subprocess.Popen._execute_child = start_cold

    def _execute_child(self, process, *given) -> None:
        """Replaces the method of `Popen` with the same arguments."""
        args, executable, preexec_fn, _close, pass_fds, cwd, env, _info, _flags, shell, *others = given
        into, own_in, own_out, out, own_err, err, _restore, gid, gids, uid, umask, is_new_session, group = others
        words = [os.fspath(word) for word in args] if isinstance(args, list | tuple) else []
        environment = dict(os.environ if env is None else env)
        plain = not (executable or preexec_fn or pass_fds or shell or gid or gids or uid)
        plain = plain and umask == -1 and group == -1 and words[:1] == [sys.executable]
        if not plain or not is_heavy(words[1:], cwd) or not self._is_like(environment):
            start_cold(process, *given)
            return
        asked = {
            "words": words[1:], "cwd": os.fspath(cwd or os.getcwd()), "environment": environment,
            "parent": os.getpid(), "session": is_new_session,
        }  # fmt: skip
        streams = [stream if stream != -1 else own for own, stream in ((0, into), (1, out), (2, err))]
        with self._lock:
            self.start()
            # The process that forked it exits, so the nearest ancestor that adopts orphans becomes its parent.
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._near, [json.dumps(asked).encode()], streams)
                told = self._near.recv(64)
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0)
        if not told:
            raise OSError("the warm interpreter has ended; what it said is on its standard error")
        process.pid = int(told)
        process._child_created = True
        process._close_pipe_fds(into, own_in, own_out, out, own_err, err)

    def _is_like(self, environment: dict[str, str]) -> bool:
        """Whether no variable differs that libraries read when they are imported."""
        names = {name for name in environment | self._environment if name.startswith(READ_AT_IMPORT)}
        return all(environment.get(name) == self._environment.get(name) for name in names - IS_DONE_HERE)


def is_heavy(words: list[str], cwd) -> bool:
    """Whether the words after `python` name a program that imports a large package."""
    if words == XDIST:
        return True
    first = words[1:] if words[:1] == ["-u"] else words
    text = " ".join(first)
    if first and first[0].endswith(".py"):
        text += (Path(cwd or ".") / first[0]).read_text(encoding="utf-8")
    if NEVER_FORKED in text:
        return False
    if first[:1] == ["-m"]:
        is_ours = first[1] == "rlvitals.cli.main"
        return first[1] in (*STARTING_OTHERS, "uvicorn") or (is_ours and first[2] in HEAVY_VERBS)
    is_program = first[:1] == ["-c"] or (first and first[0].endswith(".py"))
    return is_program and any(name in text for name in HEAVY)


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def serve(asked: socket.socket) -> dict:
    """Answer requests until the socket is closed. Returns only in the new processes."""
    gc.freeze()  # these objects stay in memory pages that all processes share
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False  # what was imported here is not destroyed in each process
    while True:
        message, streams, _, _ = socket.recv_fds(asked, 2**20, 3)
        if not message:
            os._exit(0)
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            request = json.loads(message)
            while os.getppid() != request["parent"]:
                time.sleep(0.0005)
            for own, stream in enumerate(streams):
                os.dup2(stream, own)
            if request["session"]:
                os.setsid()
            asked.send(str(os.getpid()).encode())
            asked.close()
            for stream in streams:
                os.close(stream)
            return request
        os.waitpid(between, 0)
        for stream in streams:
            os.close(stream)


def open_streams(*, is_unbuffered: bool) -> None:
    """Open the standard streams again: the old ones keep the properties of the files they were opened on."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        encoding = os.environ.get("PYTHONIOENCODING", old.encoding)
        new = open(number, "w" if number else "r", encoding=encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        if number:
            new.reconfigure(line_buffering=number == 2 or new.isatty(), write_through=is_unbuffered)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def put_on_path(folders: str) -> None:
    """Set `sys.path` as this PYTHONPATH would."""
    asked = [folder for folder in folders.split(os.pathsep) if folder]
    sys.path[1:] = [*asked, *(folder for folder in sys.path[1:] if folder not in {*asked, *OWN_PATH})]


def run(request: dict) -> None:
    """Run the program as `python` would with these arguments."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.dont_write_bytecode = bool(os.environ.get(WRITES_NO_BYTECODE))
    put_on_path(os.environ.get("PYTHONPATH", ""))
    words = request["words"]
    if words == XDIST:
        sys.modules["warm_python"] = sys.modules[__name__]
        Warm.inherited = Warm.fork()
        for name in PLUG_INS:
            if name in sys.modules:
                sys.modules[name].__doc__ = "PYTEST_DONT_REWRITE"
    sys.orig_argv = [sys.executable, *words]
    is_unbuffered = words[0] == "-u" or bool(os.environ.get("PYTHONUNBUFFERED"))
    open_streams(is_unbuffered=is_unbuffered)
    words = words[1:] if words[0] == "-u" else words
    if words[0] == "-m":
        sys.path[0], sys.argv = os.getcwd(), words[1:]
        if words[1] in STARTING_OTHERS:
            with Warm.fork().taking_over():
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-c":
        sys.path[0], sys.argv, text, name = "", ["-c", *words[2:]], words[1], "<string>"
    else:
        sys.path[0], sys.argv, name = os.path.dirname(os.path.abspath(words[0])), words, words[0]
        main.__file__, text = name, Path(name).read_text(encoding="utf-8")
    exec(compile(text, name, "exec"), main.__dict__)


def run_and_leave(request: dict) -> None:
    """Run a program and exit as an interpreter does, but without destroying the imported modules: that would first copy
    each object out of the memory pages that all processes share.
    """
    status = 0
    try:
        run(request)
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        status = error.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    if (left := sys.modules["__main__"].__dict__) is not globals():
        left.clear()  # closes what the program left open
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    import importlib
    import warnings

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        is_light = sys.argv[2:] == ["light"]
        for name in (*TESTS_IMPORT, *(("torch",) if is_light else IMPORTS)):
            importlib.import_module(name)
        for name, attributes in () if is_light else NAMES:
            for attribute in attributes:
                getattr(importlib.import_module(name), attribute)
    run_and_leave(serve(socket.socket(fileno=int(sys.argv[1]))))
