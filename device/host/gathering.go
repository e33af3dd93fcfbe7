package host

import (
	"context"
	"fmt"
	"sync"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/matching"
)

// gathering holds the ranks of a communicator that have joined so far.
type gathering struct {
	size    int
	members []*communicator
	here    int
	over    chan struct{} // closed when all ranks have joined, or when err is set
	err     error
}

// gatherings holds the incomplete gatherings of the process.
var gatherings = gatheringList{open: map[device.CommunicatorID]*gathering{}}

type gatheringList struct {
	mu   sync.Mutex
	open map[device.CommunicatorID]*gathering
}

// join waits until all ranks of c's world have joined.
func (l *gatheringList) join(ctx context.Context, id device.CommunicatorID, c *communicator) error {
	g, err := l.enter(id, c)
	if err != nil {
		return err
	}
	select {
	case <-g.over:
		return g.err
	case <-ctx.Done():
		return l.leave(ctx, id, g, c)
	}
}

func (l *gatheringList) enter(id device.CommunicatorID, c *communicator) (*gathering, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.open[id]
	if g == nil {
		g = &gathering{size: c.size, members: make([]*communicator, c.size), over: make(chan struct{})}
		l.open[id] = g
	}
	switch {
	case g.size != c.size:
		g.err = c.failure("NewCommunicator", []int{c.rank}, device.ErrMismatch, "rank %d has a size of %d, the others have %d", c.rank, c.size, g.size)
		delete(l.open, id)
		close(g.over)
	case g.members[c.rank] != nil:
		return nil, self.Invalid("NewCommunicator", 0, "rank %d of %d has joined already; each rank joins once, and each communicator has its own id", c.rank, c.size)
	default:
		g.members[c.rank] = c
		if g.here++; g.here == g.size {
			w := newWorld(g.size)
			for _, m := range g.members {
				m.world = w
			}
			delete(l.open, id)
			close(g.over)
		}
	}
	return g, nil
}

// leave removes c again, unless all ranks have joined meanwhile.
func (l *gatheringList) leave(ctx context.Context, id device.CommunicatorID, g *gathering, c *communicator) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-g.over:
		return g.err
	default:
	}
	var missing []int
	for r, m := range g.members {
		if m == nil {
			missing = append(missing, r)
		}
	}
	g.members[c.rank] = nil
	if g.here--; g.here == 0 {
		delete(l.open, id)
	}
	return c.failure("NewCommunicator", missing, fmt.Errorf("%w: %w", device.ErrTimeout, ctx.Err()), "%s missing", matching.RanksAre(missing))
}
