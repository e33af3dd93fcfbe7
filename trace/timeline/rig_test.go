package timeline

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/perfettotest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

const mib = 1 << 20

// sink is a file that a test reads while it is written.
type sink struct {
	mu     sync.Mutex
	b      bytes.Buffer
	writes []int // the length after each
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.b.Write(p)
	s.writes = append(s.writes, s.b.Len())
	return n, err
}

func (s *sink) bytes() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.b.Bytes())
}

// rig is a device with a cache, a pool and a stream, under a timeline.
type rig struct {
	*stacktest.Stack
	t      testing.TB
	out    *sink
	tl     *Timeline
	memory *Memory
	stream device.Stream // whose kernels are seen
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, out: &sink{}}
	var err error
	r.tl, err = New(r.out)
	require.NoError(t, err)
	r.memory = r.tl.Memory()
	r.Stack = stacktest.New(t, stacktest.Config{Capacity: 64 * mib, Cache: memcache.Config{Observer: r.memory}, Pool: transfer.Config{Observer: r.tl.Transfer()}})
	r.memory.Watch(r.Cache)
	r.stream, err = r.Dev.NewStream(device.StreamOptions{Launching: r.tl.Launching})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, r.tl.Close())
		require.NoError(t, r.stream.Close())
	})
	return r
}

func (r *rig) alloc(ctx context.Context, bytes int64) memcache.Block {
	r.t.Helper()
	b, err := r.Cache.Alloc(ctx, bytes, r.stream)
	require.NoError(r.t, err)
	return b
}

// launch queues a kernel, if the device's kernels are Go functions.
func (r *rig) launch(name string, b memcache.Block, f func()) {
	r.t.Helper()
	if _, ok := r.Dev.(device.HostVisible); !ok {
		r.t.Skip("the kernels are Go functions")
	}
	require.NoError(r.t, r.stream.Launch(&device.Launch{Name: name, Func: f, Writes: []device.Range{b.Range(0, b.Size())}}))
}

// read is an event of the file.
type read struct {
	Phase string         `json:"ph"`
	Pid   int            `json:"pid"`
	Tid   int            `json:"tid"`
	TS    float64        `json:"ts"`
	Dur   float64        `json:"dur"`
	Name  string         `json:"name"`
	Kind  string         `json:"cat"`
	ID    int64          `json:"id"`
	Args  map[string]any `json:"args"`

	process, lane string
}

// parse reads a file, and sets the names of each event's process and lane.
func parse(t testing.TB, data []byte) (events []read) {
	t.Helper()
	require.NoError(t, json.Unmarshal(data, &events), "%s", data)
	processes, threads := map[int]string{}, map[[2]int]string{}
	for _, e := range events {
		switch {
		case e.Phase == "M" && e.Name == "process_name":
			require.NotContains(t, processes, e.Pid)
			processes[e.Pid] = e.Args["name"].(string)
		case e.Phase == "M" && e.Name == "thread_name":
			require.NotContains(t, threads, [2]int{e.Pid, e.Tid})
			threads[[2]int{e.Pid, e.Tid}] = e.Args["name"].(string)
		}
	}
	for i := range events {
		e := &events[i]
		e.process, e.lane = processes[e.Pid], threads[[2]int{e.Pid, e.Tid}]
		require.NotEmpty(t, e.process)
		if e.Phase != "M" {
			require.NotEmpty(t, e.lane, "%+v", e)
		}
	}
	require.Empty(t, perfettotest.Check(data))
	return events
}

func on(events []read, process, lane, phase string) (list []read) {
	for _, e := range events {
		if e.process == process && e.lane == lane && e.Phase == phase {
			list = append(list, e)
		}
	}
	return list
}

func names(events []read) (list []string) {
	for _, e := range events {
		list = append(list, e.Name)
	}
	return list
}

func onName(events []read, name string) (list []read) {
	for _, e := range events {
		if e.Name == name {
			list = append(list, e)
		}
	}
	return list
}

// kernelsOf returns the kernels of a name.
func kernelsOf(events []read, name string) []read {
	return slices.DeleteFunc(onName(events, name), func(e read) bool { return e.Kind != "kernel" })
}

func counter(events []read, name string) (values []float64) {
	for _, e := range onName(events, name) {
		values = append(values, e.Args["bytes"].(float64))
	}
	return values
}

// requireSums requires that the categories add up to the allocated bytes each time, and that
// counters don't go back in time.
func requireSums(t testing.TB, events []read) {
	t.Helper()
	all, parts := onName(events, "memory allocated"), onName(events, "memory by category")
	require.Len(t, parts, len(all))
	for i, p := range parts {
		var sum float64
		for _, v := range p.Args {
			require.GreaterOrEqual(t, v, 0.0)
			sum += v.(float64)
		}
		require.Equal(t, all[i].Args["bytes"], sum)
		require.True(t, i == 0 || p.TS >= parts[i-1].TS)
	}
}
