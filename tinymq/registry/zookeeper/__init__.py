"""The registry in ZooKeeper. Plugged in by the URL scheme `zookeeper`.

The only room that imports kazoo.
"""
