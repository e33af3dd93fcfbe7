//go:build cuda

package cuda_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// allReduceBytes are sizes from one that shows the latency to one that shows the links' bandwidth;
// 2,680,000 is the size of a model's gradients (width 512).
var allReduceBytes = []int64{4 << 10, 256 << 10, 2_680_000, 16 << 20, 256 << 20}

// BenchmarkAllReduce queues consecutive all-reduces on every GPU, up to CISTERN_BENCH_RANKS (2),
// from Go and in a loop in C over the same library, with blocking and nonblocking communicators.
// The time is that of the slowest rank.
func BenchmarkAllReduce(b *testing.B) {
	ranks := 2
	if n, err := strconv.Atoi(os.Getenv("CISTERN_BENCH_RANKS")); err == nil {
		ranks = n
	}
	ranks = min(ranks, collectiveRanks(b))
	loop := filepath.Join(b.TempDir(), "nccl_loop")
	out, err := exec.Command("gcc", "-O2", "-pthread", "-o", loop, "testdata/nccl_loop.c", "-ldl").CombinedOutput()
	require.NoError(b, err, "%s", out)
	library := os.Getenv(ncclPath)
	if library == "" {
		library = "libnccl.so.2"
	}
	for _, bytes := range allReduceBytes {
		b.Run(fmt.Sprintf("%d-GPUs-%d-bytes/go", ranks, bytes), func(b *testing.B) { allReduce(b, ranks, bytes) })
		for mode, name := range []string{"c non-blocking", "c"} {
			b.Run(fmt.Sprintf("%d-GPUs-%d-bytes/%s", ranks, bytes, name), func(b *testing.B) {
				out, err := exec.Command(loop, library, strconv.Itoa(ranks), strconv.FormatInt(bytes, 10), strconv.Itoa(b.N), strconv.Itoa(mode)).CombinedOutput()
				require.NoError(b, err, "%s", out)
				ns, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
				require.NoError(b, err, "%s", out)
				b.ReportMetric(ns, "ns/op")
				bandwidth(b, ranks, bytes, ns)
			})
		}
	}
}

// bandwidth reports the bus bandwidth like nccl-tests: the bytes that each link carries.
func bandwidth(b *testing.B, ranks int, bytes int64, ns float64) {
	b.ReportMetric(float64(bytes)*2*float64(ranks-1)/float64(ranks)/ns, "busGB/s")
}

func allReduce(b *testing.B, ranks int, bytes int64) {
	devs := make([]device.Device, ranks)
	for r := range devs {
		d, err := openRank(r)
		require.NoError(b, err)
		devs[r] = d
	}
	id, err := devs[0].(device.Collectives).NewCommunicatorID()
	require.NoError(b, err)
	took := make([]time.Duration, ranks)
	errs := make([]error, ranks)
	var all sync.WaitGroup
	for r := range devs {
		all.Go(func() { took[r], errs[r] = allReduceRank(devs[r], id, r, ranks, bytes, b.N) })
	}
	all.Wait()
	ns := 0.0
	for r, d := range devs {
		require.NoError(b, errs[r])
		require.NoError(b, d.Close())
		ns = max(ns, float64(took[r])/float64(b.N))
	}
	b.ReportMetric(ns, "ns/op")
	bandwidth(b, ranks, bytes, ns)
}

func allReduceRank(d device.Device, id device.CommunicatorID, rank, ranks int, bytes int64, n int) (time.Duration, error) {
	ctx := context.Background()
	s, err := d.NewStream(device.StreamOptions{})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	p, err := d.Alloc(bytes)
	if err != nil {
		return 0, err
	}
	defer d.Free(p)
	c, err := d.(device.Collectives).NewCommunicator(ctx, id, rank, ranks, device.CommunicatorOptions{Timeout: time.Minute})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	queue := func(n int) error {
		for range n {
			if err := c.AllReduce(s, p, p, bytes/4, device.Float32, device.ReduceSum); err != nil {
				return err
			}
		}
		return s.Synchronize(ctx)
	}
	if err := s.Memset(p, 0, bytes); err != nil {
		return 0, err
	}
	if err := queue(20); err != nil { // the first ones connect the ranks
		return 0, err
	}
	began := time.Now()
	if err := queue(n); err != nil {
		return 0, err
	}
	return time.Since(began), c.AsyncError()
}
