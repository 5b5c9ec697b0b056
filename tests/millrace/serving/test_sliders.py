"""Looking ahead: the slider that is being moved comes first, near positions before far ones."""

from tests.extras import optional

optional("fastapi", "serve")

from millrace.serving.questions import WhatIfs  # noqa: E402
from millrace.serving.sliders import SLIDERS, likely_changes  # noqa: E402


def test_the_slider_that_moves_is_looked_ahead_of_first() -> None:
    now, before = WhatIfs(links=0.5, jitter=0.1), WhatIfs(jitter=0.1)
    changes = list(likely_changes(now, before, 0.7, several_nodes=True))
    others = len(SLIDERS["links"]) - 1
    assert {change.links for change in changes[:2]} == {0.25, 0.75}
    assert all(change.network == 1 for change in changes[:others])
    assert all(change.jitter == 0.1 for change in changes[:others])
    assert now not in changes


def test_without_a_network_it_is_not_looked_ahead_of() -> None:
    changes = list(likely_changes(WhatIfs(), WhatIfs(), 0.7, several_nodes=False))
    assert {change.network for change in changes} == {1.0}
    assert len(changes) == len(set(changes))
