# Generated from mongoq/aio/operations.py by scripts/unasync.py. Do not edit.
"""Operations that runs of pipelines, Spark, telemetry and virtual brokers use beside the methods of brokers and queues.

They are all that these packages know of the core: whoever changes it keeps the names and arguments of this list. An
operation is run by ``_run`` of a broker or queue.
"""

from mongoq.core.claim.worker_claims import ClaimedBatch, make_filter
from mongoq.core.command import Interruption
from mongoq.core.coordination.document_lease import ForeignLease, TakenOver
from mongoq.core.coordination.limits import bucket_id
from mongoq.core.coordination.sources import Yielded, source_id
from mongoq.core.coordination.streams import StreamRun
from mongoq.core.join import MAX_ARRIVALS, Arrival, JoinSpec
from mongoq.core.push.draft import Draft, Push
from mongoq.core.settle.apply_outcomes import ItemOutcome
from mongoq.core.settle.by_token import FencedItem, SettledByToken, cut_ids
from mongoq.core.settle.exchange import PutOff
from mongoq.core.settle.move import CheckedMove, Destination, check_move
from mongoq.core.state.context import BrokerContext, QueueContext, context_of
from mongoq.core_threads.base.queue_settings import ensure_ready
from mongoq.core_threads.claim.pop import pop
from mongoq.core_threads.claim.reserve import reserve, reserve_many
from mongoq.core_threads.claim.worker_claims import claim_batch, claim_lapsed, is_kept, take_over
from mongoq.core_threads.coordination.document_lease import extend_lease, give_back, halt, is_halted, read_holder
from mongoq.core_threads.coordination.heartbeats import workers_of
from mongoq.core_threads.coordination.limits import end_put_offs, give_back_slots, take_slots
from mongoq.core_threads.coordination.sources import push_records
from mongoq.core_threads.coordination.streams import (
    next_claim,
    open_run,
    read_notes,
    server_time,
    settle_claim,
    take_up_claim,
    write_note,
)
from mongoq.core_threads.history.counters import flush, stats
from mongoq.core_threads.history.replay import find_originals
from mongoq.core_threads.insight import find_dead_queue
from mongoq.core_threads.join import join_arrivals, settle_expired
from mongoq.core_threads.push.push import push, push_each, push_many
from mongoq.core_threads.settle.apply_outcomes import (
    apply_outcomes,
    apply_outcomes_at_most_once,
    apply_outcomes_of_queues,
    commit_before_run,
)
from mongoq.core_threads.settle.by_token import extend_held, read_held_documents, settle_held
from mongoq.core_threads.settle.move import move, move_many
from mongoq.core_threads.settle.settle import bury, commit, commit_many, release, release_many, rollback, rollback_many
from mongoq.core_threads.wait.wait import find_next_dues, is_drained, wait_for_item
