"""Operations that runs of pipelines, Spark, telemetry and virtual brokers use beside the methods of brokers and queues.

They are all that these packages know of the core: whoever changes it keeps the names and arguments of this list. An
operation is run by ``_run`` of a broker or queue.
"""

from mongoq.core.base.queue_settings import ensure_ready
from mongoq.core.claim.pop import pop
from mongoq.core.claim.reserve import reserve, reserve_many
from mongoq.core.claim.worker_claims import ClaimedBatch, claim_batch, claim_lapsed, is_kept, make_filter, take_over
from mongoq.core.command import Interruption
from mongoq.core.coordination.document_lease import (
    ForeignLease,
    TakenOver,
    extend_lease,
    give_back,
    halt,
    is_halted,
    read_holder,
)
from mongoq.core.coordination.heartbeats import workers_of
from mongoq.core.coordination.limits import bucket_id, end_put_offs, give_back_slots, take_slots
from mongoq.core.coordination.sources import Yielded, push_records, source_id
from mongoq.core.coordination.streams import (
    StreamRun,
    next_claim,
    open_run,
    read_notes,
    server_time,
    settle_claim,
    take_up_claim,
    write_note,
)
from mongoq.core.history.counters import flush, stats
from mongoq.core.history.replay import find_originals
from mongoq.core.insight import find_dead_queue
from mongoq.core.join import MAX_ARRIVALS, Arrival, JoinSpec, join_arrivals, settle_expired
from mongoq.core.push.draft import Draft, Push
from mongoq.core.push.push import push, push_each, push_many
from mongoq.core.settle.apply_outcomes import (
    ItemOutcome,
    apply_outcomes,
    apply_outcomes_at_most_once,
    apply_outcomes_of_queues,
    commit_before_run,
)
from mongoq.core.settle.by_token import (
    FencedItem,
    SettledByToken,
    cut_ids,
    extend_held,
    read_held_documents,
    settle_held,
)
from mongoq.core.settle.exchange import PutOff
from mongoq.core.settle.move import CheckedMove, Destination, check_move, move, move_many
from mongoq.core.settle.settle import (
    bury,
    commit,
    commit_many,
    release,
    release_many,
    rollback,
    rollback_many,
)
from mongoq.core.state.context import BrokerContext, QueueContext, context_of
from mongoq.core.wait.wait import find_next_dues, is_drained, wait_for_item
