package trace

import (
	"github.com/cistern-ml/cistern/device"
)

// collectiveOp is an operation of a communicator.
type collectiveOp uint8

const (
	opAllReduce collectiveOp = iota
	opBroadcast
	opAllGather
	opReduceScatter
	opSend
	opRecv
	opBarrier
	opGroup // of several operations
)

// collectiveNames are the operations' names in attributes. Spans have a prefix.
var collectiveNames = [...]string{
	opAllReduce: "all_reduce", opBroadcast: "broadcast", opAllGather: "all_gather", opReduceScatter: "reduce_scatter",
	opSend: "send", opRecv: "recv", opBarrier: "barrier", opGroup: "group",
}

const collectiveSpan = "cistern.collective."

// tally is the data that an operation, or the calls of a group together, exchange.
type tally struct {
	op      collectiveOp // of all calls; opGroup if they differ
	dtype   string       // of all calls; "" if they differ
	calls   int
	matched int64 // calls that every rank makes: all except sends and receives
	bytes   int64
	// onBus is bytes times the share that crosses a rank's link. Bus bandwidth is onBus by the
	// time.
	onBus float64
}

// tallyOf counts as NCCL's tests do (nccl-tests, PERFORMANCE.md). The bytes are those of the whole
// result or, for a reduce-scatter, of a rank's whole input. In a ring every byte crosses each link
// 2(n-1)/n times for an all-reduce, (n-1)/n times for an all-gather or a reduce-scatter, and once
// for an operation with a root or a peer. Divided by the time this is the link's bandwidth for any
// n.
func tallyOf(op collectiveOp, t device.DataType, count int64, ranks int) tally {
	n, factor := float64(ranks), 1.0
	x := tally{op: op, dtype: t.String(), calls: 1, matched: 1, bytes: max(count, 0) * t.Bytes()}
	switch op {
	case opAllReduce:
		factor = 2 * (n - 1) / n
	case opAllGather, opReduceScatter:
		factor = (n - 1) / n
		x.bytes *= int64(ranks)
	case opSend, opRecv:
		x.matched = 0
	case opBarrier:
		x.dtype = ""
	}
	x.onBus = factor * float64(x.bytes)
	return x
}

// add adds a call to a group.
func (x *tally) add(y tally) {
	if x.calls == 0 {
		*x = y
		return
	}
	if x.op != y.op {
		x.op = opGroup
	}
	if x.dtype != y.dtype {
		x.dtype = ""
	}
	x.calls += y.calls
	x.matched += y.matched
	x.bytes += y.bytes
	x.onBus += y.onBus
}
