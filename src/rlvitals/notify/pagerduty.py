"""PagerDuty, through its Events API v2: a finding triggers an alert, and its recovery resolves it by the same key."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rlvitals.notify.messages import Message
from rlvitals.notify.service import Variable, WebService, json_body
from rlvitals.terminal import cut_middle
from rlvitals.webhook import Sending

EVENTS = "https://events.pagerduty.com"
LONGEST_SUMMARY = 1024


class PagerDuty(WebService):
    """A service of PagerDuty. A message that is sent twice becomes one alert, because it has the same key."""

    name = "pagerduty"
    variables = (
        Variable("RLVITALS_PAGERDUTY_ROUTING_KEY", "the integration key of an Events API v2 integration"),
        Variable("RLVITALS_PAGERDUTY_URL", "https://events.eu.pagerduty.com in the European region", is_needed=False),
    )
    takes_pictures = False  # it accepts only addresses of pictures
    recovers_quietly = True
    knows_repeats = True

    def compose(self, message: Message, reference: str = "") -> Sending:
        event: dict[str, Any] = {
            "routing_key": self._variable("RLVITALS_PAGERDUTY_ROUTING_KEY").strip(),
            "event_action": "resolve" if message.kind == "recovered" else "trigger",
            "dedup_key": message.key,
        }
        if message.kind != "recovered":
            event["payload"] = {
                "summary": cut_middle(message.headline, LONGEST_SUMMARY),
                "source": message.run,
                "severity": message.severity,
                "timestamp": datetime.fromtimestamp(message.timestamp, UTC).isoformat(timespec="milliseconds"),
                "component": "training",
                "custom_details": dict(message.facts) | {"Consider": list(message.advice)},
            }
            event["client"] = "rlvitals"
            if message.link:
                event["client_url"] = message.link
                event["links"] = [{"href": message.link, "text": "Open the run"}]
        body, headers = json_body(event)
        url = self._address("RLVITALS_PAGERDUTY_URL") if self._variable("RLVITALS_PAGERDUTY_URL") else EVENTS
        return Sending(f"{url.rstrip('/')}/v2/enqueue", body, headers)
