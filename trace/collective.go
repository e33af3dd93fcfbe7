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

// collectiveNames are the operations as attributes; spans have a prefix.
var collectiveNames = [...]string{
	opAllReduce: "all_reduce", opBroadcast: "broadcast", opAllGather: "all_gather", opReduceScatter: "reduce_scatter",
	opSend: "send", opRecv: "recv", opBarrier: "barrier", opGroup: "group",
}

const collectiveSpan = "cistern.collective."

// tally is what an operation, or the calls of a group together, exchange.
type tally struct {
	op      collectiveOp // of all calls; else opGroup
	dtype   string       // of all calls; "" if they have several
	calls   int
	matched int64 // calls that every rank makes: all but sends and receives
	bytes   int64
	// onBus is bytes times the share that crosses the link of a rank: the bus bandwidth is that by the time.
	onBus float64
}

// tallyOf counts as NCCL's tests do (nccl-tests, PERFORMANCE.md): bytes are those of the whole result or, for a reduce-scatter, of a rank's whole
// input. A ring takes every byte of an all-reduce over each link 2(n-1)/n times, of an all-gather or a reduce-scatter (n-1)/n times, and of what has a
// root or a peer once. By the time that is the link's bandwidth, whatever n is.
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

// add takes one more call into a group.
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
