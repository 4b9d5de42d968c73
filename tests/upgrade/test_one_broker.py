"""One broker of a running cluster of the base build changes to the present build under load, and back. The complete
upgrade is in test_whole_way.py (`make test-upgrade`).
"""

from __future__ import annotations

from pathlib import Path

from tests.upgrade.builds import TOPIC, Build, Cluster, Load, check_all_there
from tinymq import Client
from tinymq.format.feature_level import KNOWN_LEVEL


def test_a_broker_is_upgraded_and_downgraded_again_under_load(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.form(Build.BASE)
        with Client(cluster.servers) as mq:
            mq.admin.create_topic(TOPIC, partitions=3, replication_factor=3)
        with Load(cluster.servers) as load:
            load.goes_on(cluster)
            cluster.swap(3, Build.PRESENT)
            load.goes_on(cluster)
            with Client(cluster.servers) as mq:
                found = mq.admin.feature_level()
            assert found.level == 1
            assert {1, 2} <= set(found.waits_for), "and 3, while a broker that knows no levels leads the metadata"
            assert [member.known for member in found.members] == [1, 1, KNOWN_LEVEL]
            cluster.swap(3, Build.BASE)
            load.goes_on(cluster)
        check_all_there(cluster.servers, load)
