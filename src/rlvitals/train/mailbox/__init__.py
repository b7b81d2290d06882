"""The e-mail agent's environment: a mailbox to search, questions about it, three tools, a rubric, rewards. All offline.

| file | what |
|---|---|
| `records.py` | an e-mail, a question |
| `store.py` | the mailbox: SQLite with full-text search; every access is that of one inbox |
| `generate.py` | mailboxes of any size from a seed, with questions, answers and source messages |
| `mini.py` | some 40 short messages in a closed vocabulary, another mailbox for every seed: for tiny models |
| `load.py` | one's own mail: mbox files, the Enron CSV, questions from JSONL |
| `calls.py` | tool calls in an assistant's message: OpenAI's form, `<tool_call>` texts, short tags |
| `tools.py` | `search_emails`, `read_email`, `return_final_answer` |
| `episode.py` | one question: assistant messages in, observations out, an outcome at the end |
| `transcript.py` | episodes as the rollouts and groups that `run.log_groups` takes |
| `rubric.py`, `reward.py` | what happened in an episode; what it is worth |
| `grade.py` | whether an answer is right: exactly, by its words, or as a judge says |

>>> from rlvitals.train.mailbox.episode import Episode
>>> from rlvitals.train.mailbox.mini import mini, solution
>>> world = mini(seed=0)
>>> episode = Episode(world.questions[0], world.mailbox, style="tags")
>>> for text in solution(world.questions[0]):
...     observations = episode.step(text)
>>> episode.outcome, episode.rubric.answer_correct
('answered', True)
"""
