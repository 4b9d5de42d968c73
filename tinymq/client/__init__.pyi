"""The public names of the client, the one list of them: `tinymq/client/__init__.py` reads it, and so do type checkers.

Each line names one, in the form by which a stub exports it. `tinymq` has the same names.
"""

from tinymq.base.errors import NotDelivered as NotDelivered
from tinymq.base.errors import TinymqError as TinymqError
from tinymq.base.errors import Unsent as Unsent
from tinymq.base.types import Offset as Offset
from tinymq.base.types import RecordMetadata as RecordMetadata
from tinymq.client.admin.cluster_status import BrokerStatus as BrokerStatus
from tinymq.client.admin.cluster_status import ClusterStatus as ClusterStatus
from tinymq.client.admin.cluster_status import ReplicaStatus as ReplicaStatus
from tinymq.client.admin.cluster_status import TopicDescription as TopicDescription
from tinymq.client.admin.dead_letters import GroupStory as GroupStory
from tinymq.client.admin.dead_letters import RecordStory as RecordStory
from tinymq.client.admin.dead_letters import Redriven as Redriven
from tinymq.client.admin.groups import GroupCursor as GroupCursor
from tinymq.client.admin.groups import GroupDescription as GroupDescription
from tinymq.client.admin.groups import GroupMember as GroupMember
from tinymq.client.admin.holds import AsyncHold as AsyncHold
from tinymq.client.admin.holds import HoldDescription as HoldDescription
from tinymq.client.admin.partition_offsets import PartitionOffsets as PartitionOffsets
from tinymq.client.admin.scans import ScanDescription as ScanDescription
from tinymq.client.admin.scans import ScanSummary as ScanSummary
from tinymq.client.admin.scans import ServedBy as ServedBy
from tinymq.client.cluster.routing import Broker as Broker
from tinymq.client.common.config import ClientConfig as ClientConfig
from tinymq.client.common.config import ConsumerConfig as ConsumerConfig
from tinymq.client.common.config import ProducerConfig as ProducerConfig
from tinymq.client.common.config import QueueConfig as QueueConfig
from tinymq.client.common.config import ReaderConfig as ReaderConfig
from tinymq.client.consume.cursors import ChannelDescription as ChannelDescription
from tinymq.client.consume.cursors import ConsumerDescription as ConsumerDescription
from tinymq.client.consume.reader import AsyncReader as AsyncReader
from tinymq.client.consume.records import Message as Message
from tinymq.client.consume.scan import AsyncScan as AsyncScan
from tinymq.client.facade.async_client import AsyncClient as AsyncClient
from tinymq.client.facade.client import Client as Client
from tinymq.client.facade.consumer import Consumer as Consumer
from tinymq.client.facade.frame import Frame as Frame
from tinymq.client.facade.generated.hold import Hold as Hold
from tinymq.client.facade.producer import Producer as Producer
from tinymq.client.facade.queue import Queue as Queue
from tinymq.client.facade.reader import Reader as Reader
from tinymq.client.facade.scan import Scan as Scan
from tinymq.client.frame.frame import AsyncFrame as AsyncFrame
from tinymq.client.group.consumer import AsyncConsumer as AsyncConsumer
from tinymq.client.group.fetched_records import TopicPartition as TopicPartition
from tinymq.client.produce.delivery import BatchDelivery as BatchDelivery
from tinymq.client.produce.delivery import Delivery as Delivery
from tinymq.client.produce.producer import AsyncProducer as AsyncProducer
from tinymq.client.produce.producer_batch import BatchMetadata as BatchMetadata
from tinymq.client.queue.queue import AsyncQueue as AsyncQueue
from tinymq.client.serve.health import HandlerHealth as HandlerHealth
from tinymq.client.serve.health import Health as Health
