"""Teachers: who scores the student's code on four criteria, each from 0 to 1.

| file | teacher |
|---|---|
| `offline.py` | the default, deterministic: runs the code (`runner`, `worker`), reads its syntax tree |
| `endpoint.py` | a model behind any OpenAI-compatible address, and the client it is asked through |
| `local.py` | a model of transformers in this process |
| `cache.py` | in front of any of them: an answer that was judged is not judged again |

A teacher that cannot judge an answer reports a failure: a failed judgement is missing, never 0 or 0.5.
"""
