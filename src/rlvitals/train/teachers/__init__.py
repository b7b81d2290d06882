"""Teachers: they score the student's code on four criteria, each from 0 to 1.

| file | teacher |
|---|---|
| `offline.py` | the default, deterministic: runs the code (`runner`, `worker`) and reads its syntax tree |
| `endpoint.py` | a model behind any OpenAI-compatible address, and the client for such addresses |
| `local.py` | a model of transformers in this process |
| `cache.py` | wraps any of them: an answer that was judged is not judged again |

If an answer cannot be judged, its judgement is missing. It is never 0 or 0.5.
"""
