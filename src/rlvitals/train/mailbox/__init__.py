"""The e-mail agent's environment: a mailbox, questions about it, three tools, a rubric, rewards. It works offline.

| file | what |
|---|---|
| `mail.py` | e-mails and questions; reading a user's own: mbox files, the Enron CSV, questions from JSONL |
| `store.py` | the mailbox: SQLite with full-text search; every access is for one inbox |
| `worlds.py` | generated mailboxes with questions: large ones, and mini ones for tiny models |
| `tools.py` | the three tools, and the formats of calls: OpenAI-style, `<tool_call>` texts, short tags |
| `episode.py` | one attempt at a question: takes messages, returns the results of tools, has an outcome |
| `reward.py` | the facts about an episode, and its reward |
| `graders.py` | whether an answer is right: the same words, enough of the words, or a judge's verdict |

>>> from rlvitals.train.mailbox.episode import Episode
>>> from rlvitals.train.mailbox.worlds import mini, solution
>>> world = mini(seed=0)
>>> episode = Episode(world.questions[0], world.mailbox, style="tags")
>>> for text in solution(world.questions[0]):
...     observations = episode.step(text)
>>> episode.outcome, episode.rubric.answer_correct
('answered', True)
"""
