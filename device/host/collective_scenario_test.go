package host

import (
	"context"
	"maps"
	"sync"

	"github.com/cistern-ml/cistern/device"
)

func init() { maps.Copy(scenarios, collectiveScenarios) }

// collectiveScenarios are programs that lack an event around a collective operation. Rank 0's
// operation is on b, rank 1's on its own stream.
var collectiveScenarios = map[string]func(x *bench){
	"a kernel writes, an all-reduce reads": func(x *bench) {
		c, other, s := x.ranks()
		x.kernel(x.a, x.mem, true)
		x.handOver()
		must(c[0].AllReduce(x.b, x.noise[1], x.mem, 16, device.Float32, device.ReduceSum))
		must(c[1].AllReduce(s, other, other, 16, device.Float32, device.ReduceSum))
		must(x.b.Synchronize(context.Background()))
	},
	"an all-reduce writes, a kernel reads": func(x *bench) {
		c, other, s := x.ranks()
		must(c[1].AllReduce(s, other, other, 16, device.Float32, device.ReduceSum))
		must(c[0].AllReduce(x.b, x.mem, x.mem, 16, device.Float32, device.ReduceSum))
		x.a, x.b = x.b, x.a
		x.handOver()
		x.kernel(x.b, x.mem, false)
	},
	"another rank reads, a kernel writes": func(x *bench) {
		c, other, s := x.ranks()
		must(c[1].Broadcast(s, other, 0, 16, device.Float32, 0))
		must(c[0].Broadcast(x.b, x.mem, x.mem, 16, device.Float32, 0))
		x.a, x.b = x.b, x.a
		x.handOver()
		must(x.b.Memset(x.mem, 1, scenarioBytes))
	},
	"a root's kernel behind, a receiver's behind": func(x *bench) {
		// The root's earlier work precedes the receiver's later work; the root's later work does
		// not.
		c, other, s := x.ranks()
		if x.wrong {
			must(c[0].Broadcast(x.b, other, other, 16, device.Float32, 0))
			x.kernel(x.b, x.mem, true)
			must(c[1].Broadcast(s, x.noise[0], 0, 16, device.Float32, 0))
		} else {
			x.kernel(x.b, x.mem, true)
			must(c[0].Broadcast(x.b, other, other, 16, device.Float32, 0))
			must(c[1].Broadcast(s, x.noise[0], 0, 16, device.Float32, 0))
		}
		x.kernel(s.(*stream), x.mem, true)
		must(s.Synchronize(context.Background()))
	},
}

// ranks makes two ranks; the second one has its own memory and stream.
func (x *bench) ranks() (c [2]device.Communicator, p device.Ptr, s device.Stream) {
	id := must1(x.dev.NewCommunicatorID())
	var group sync.WaitGroup
	for r := range c {
		group.Go(func() {
			c[r] = must1(x.dev.NewCommunicator(context.Background(), id, r, len(c), device.CommunicatorOptions{}))
		})
	}
	group.Wait()
	return c, must1(x.dev.Alloc(scenarioBytes)), must1(x.dev.NewStream(device.StreamOptions{}))
}
