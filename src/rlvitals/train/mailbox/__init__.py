"""The e-mail agent's environment: a mailbox to search, questions about it, three tools, a rubric, rewards. All offline.

| file | what |
|---|---|
| `mail.py` | an e-mail, a question; one's own: mbox files, the Enron CSV, questions from JSONL |
| `store.py` | the mailbox: SQLite with full-text search; every access is that of one inbox |
| `worlds.py` | mailboxes from a seed with their questions: large ones, and mini ones for tiny models |
| `tools.py` | the three tools, and calls of them: in OpenAI's form, `<tool_call>` texts, short tags |
| `episode.py` | one question: assistant messages in, observations out, an outcome and a record at the end |
| `reward.py` | what happened in an episode, and what it is worth |
| `graders.py` | whether an answer is right: exactly, by its words, or as a judge says |

>>> from rlvitals.train.mailbox.episode import Episode
>>> from rlvitals.train.mailbox.worlds import mini, solution
>>> world = mini(seed=0)
>>> episode = Episode(world.questions[0], world.mailbox, style="tags")
>>> for text in solution(world.questions[0]):
...     observations = episode.step(text)
>>> episode.outcome, episode.rubric.answer_correct
('answered', True)
"""
