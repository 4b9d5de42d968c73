"""The settings of groups on docs/groups.md are those that are declared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinymq.base.group_config import SETTINGS, GroupKind

PAGE = Path(__file__).parents[1] / "docs/groups.md"


@pytest.mark.parametrize("kind", GroupKind)
def test_the_page_has_every_setting_with_its_default(kind: GroupKind) -> None:
    rows = [
        f"| `{name}` | {setting.text(default) or 'empty'} | {setting.help} |"
        for name, (setting, default) in SETTINGS[kind].items()
    ]
    table = "\n".join(["| setting | default | |", "|---|---|---|", *rows])
    assert table in PAGE.read_text(), f"docs/groups.md should have this table:\n{table}"
