//go:build cuda

package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/devicetest"
)

// ncclPath is the path of the library if the dynamic linker does not find it.
const ncclPath = "CISTERN_TEST_NCCL"

// openRank opens a GPU with NCCL.
func openRank(rank int) (device.Device, error) {
	name := fmt.Sprint("cuda:", rank)
	if path := os.Getenv(ncclPath); path != "" {
		name += "?nccl=" + path
	}
	return device.Open(name)
}

// collectiveRanks returns the number of ranks for which the machine has GPUs, up to 8. Without a
// GPU or NCCL it skips the test.
func collectiveRanks(t testing.TB) (n int) {
	for ; n < 8; n++ {
		d, err := openRank(n)
		if errors.Is(err, device.ErrNoDevice) {
			break
		}
		require.NoError(t, err)
		_, err = d.(device.Collectives).NewCommunicatorID()
		require.NoError(t, d.Close())
		if errors.Is(err, device.ErrUnsupported) {
			t.Skip(err, "; ", ncclPath, " names the library")
		}
		require.NoError(t, err)
	}
	if n == 0 {
		t.Skip("needs a GPU; two for all of it")
	}
	return n
}

// TestCollectives runs the whole suite if there are two GPUs; tests that need more GPUs are skipped
// with the reason.
func TestCollectives(t *testing.T) {
	n := collectiveRanks(t)
	devicetest.RunCollectives(t, devicetest.CollectivesBackend{MaxRanks: n, Open: func(t testing.TB, rank int) device.Device {
		d, err := openRank(rank)
		require.NoError(t, err)
		return d
	}})
	if n < 3 {
		t.Run("the rest of the suite", func(t *testing.T) {
			t.Skipf("there are %d GPUs; the suite needs 2, and 3 for ranks that don't come, that wait in a circle and joining", n)
		})
	}
}

// alone returns a communicator of one rank.
func alone(t *testing.T, opts device.CommunicatorOptions) (device.Device, device.Stream, device.Communicator) {
	collectiveRanks(t)
	d, err := openRank(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	id, err := d.(device.Collectives).NewCommunicatorID()
	require.NoError(t, err)
	c, err := d.(device.Collectives).NewCommunicator(ctx, id, 0, 1, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return d, s, c
}

// fakeNCCL is the variable that is set if NCCL is the fake; its value selects a behavior
// (testdata/fake/nccl.cc).
const fakeNCCL = "CISTERN_FAKE_NCCL"

// joinFake joins and leaves a communicator of one rank with the fake NCCL.
func joinFake(t *testing.T, does string, timeout time.Duration, opts device.CommunicatorOptions) error {
	if os.Getenv(fakeNCCL) == "" {
		t.Skip("only the stand-in for NCCL does that; TestFakeCollectives runs it")
	}
	t.Setenv(fakeNCCL, does)
	d, err := openRank(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	id, err := d.(device.Collectives).NewCommunicatorID()
	require.NoError(t, err)
	c, err := d.(device.Collectives).NewCommunicator(ctx, id, 0, 1, opts)
	if err == nil {
		err = c.Close()
	}
	return err
}

// TestCollectiveNeverSplit: joining also ends with its context during the split, and leaves nothing
// behind in NCCL.
func TestCollectiveNeverSplit(t *testing.T) {
	began := time.Now()
	require.ErrorIs(t, joinFake(t, "stall", 50*time.Millisecond, device.CommunicatorOptions{}), device.ErrTimeout)
	require.Less(t, time.Since(began), 5*time.Second)
	for range 2 {
		require.NoError(t, joinFake(t, "none left", time.Minute, device.CommunicatorOptions{}))
	}
}

// TestCollectiveOverlapped: NCCL chooses the clusters, or there are none.
func TestCollectiveOverlapped(t *testing.T) {
	for does, overlapped := range map[string]bool{"clustered": false, "unclustered": true} {
		require.NoError(t, joinFake(t, does, time.Minute, device.CommunicatorOptions{Overlapped: overlapped}), does)
		require.ErrorIs(t, joinFake(t, does, time.Minute, device.CommunicatorOptions{Overlapped: !overlapped}), device.ErrInvalid, does)
	}
}

// TestCollectiveBlockingVariable: a variable of NCCL that would break communicators is refused,
// with its name.
func TestCollectiveBlockingVariable(t *testing.T) {
	collectiveRanks(t)
	t.Setenv("NCCL_COMM_BLOCKING", "0")
	d, err := openRank(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	_, err = d.(device.Collectives).NewCommunicatorID()
	require.ErrorIs(t, err, device.ErrUnsupported)
	require.ErrorContains(t, err, "NCCL_COMM_BLOCKING")
}

// TestCollectiveAlone runs every operation on one GPU.
func TestCollectiveAlone(t *testing.T) {
	d, s, c := alone(t, device.CommunicatorOptions{})
	host, err := d.AllocPinned(16)
	require.NoError(t, err)
	p, err := d.Alloc(16)
	require.NoError(t, err)
	q, err := d.Alloc(16)
	require.NoError(t, err)
	for round := range 3 { // as single calls, in one group, and in a graph
		copy(host, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
		require.NoError(t, s.CopyH2D(p, host))
		require.NoError(t, s.Memset(q, 0, 16))
		capturer := s.(device.GraphCapturer)
		switch round {
		case 1:
			require.NoError(t, c.GroupStart())
		case 2:
			require.NoError(t, capturer.BeginCapture())
		}
		require.NoError(t, c.AllReduce(s, q, p, 4, device.Int32, device.ReduceSum))
		require.NoError(t, c.Barrier(s))
		require.NoError(t, c.Broadcast(s, q, p, 4, device.Float32, 0))
		require.NoError(t, c.AllGather(s, q, p, 2, device.Float64))
		require.NoError(t, c.ReduceScatter(s, q, p, 2, device.Int64, device.ReduceMax))
		switch round {
		case 1:
			require.NoError(t, c.GroupEnd())
		case 2:
			g, err := capturer.EndCapture()
			require.NoError(t, err)
			require.NoError(t, g.Replay(s))
			require.NoError(t, g.Replay(s))
			require.NoError(t, s.Synchronize(context.Background()))
			require.NoError(t, g.Close())
		}
		require.NoError(t, s.Synchronize(context.Background()))
		clear(host)
		require.NoError(t, s.CopyD2H(host, q))
		require.NoError(t, s.Synchronize(context.Background()))
		require.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, host[:16])
	}
	require.NoError(t, c.AsyncError())
	require.NoError(t, c.Close())
	require.NoError(t, d.FreePinned(host))
	require.NoError(t, d.Free(p))
	require.NoError(t, d.Free(q))
}

// TestCollectiveAbortAlone: after Abort every call returns the error, and the stream stays usable.
func TestCollectiveAbortAlone(t *testing.T) {
	_, s, c := alone(t, device.CommunicatorOptions{})
	require.NoError(t, c.Barrier(s))
	require.NoError(t, c.Abort())
	require.ErrorIs(t, c.Barrier(s), device.ErrAborted)
	require.NoError(t, s.Synchronize(context.Background()))
	require.ErrorIs(t, c.Close(), device.ErrAborted)
	require.ErrorIs(t, c.Barrier(s), device.ErrClosed)
}

// TestCollectiveGraphOutlives: a graph may be closed after the communicator of its operations.
func TestCollectiveGraphOutlives(t *testing.T) {
	_, s, c := alone(t, device.CommunicatorOptions{})
	require.NoError(t, s.(device.GraphCapturer).BeginCapture())
	require.NoError(t, c.Barrier(s))
	g, err := s.(device.GraphCapturer).EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Replay(s))
	began := time.Now()
	require.NoError(t, c.Close())
	require.Less(t, time.Since(began), 5*time.Second)
	require.ErrorIs(t, g.Replay(s), device.ErrClosed)
	require.NoError(t, g.Close())
}

// TestCollectiveReplayTimesOut: a replay that another rank does not make ends the communicator with
// a timeout; later replays are refused.
func TestCollectiveReplayTimesOut(t *testing.T) {
	if n := collectiveRanks(t); n < 2 {
		t.Skipf("needs 2 GPUs; there are %d", n)
	}
	var id device.CommunicatorID
	devs, comms := make([]device.Device, 2), make([]device.Communicator, 2)
	for r := range devs {
		d, err := openRank(r)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		devs[r] = d
	}
	id, err := devs[0].(device.Collectives).NewCommunicatorID()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var both sync.WaitGroup
	streams, graphs := make([]device.Stream, 2), make([]device.Graph, 2)
	errs := make([]error, 2)
	for r := range devs {
		both.Go(func() {
			errs[r] = func() (err error) {
				if comms[r], err = devs[r].(device.Collectives).NewCommunicator(ctx, id, r, 2, device.CommunicatorOptions{Timeout: 500 * time.Millisecond}); err != nil {
					return err
				}
				if streams[r], err = devs[r].NewStream(device.StreamOptions{}); err != nil {
					return err
				}
				if err := streams[r].(device.GraphCapturer).BeginCapture(); err != nil {
					return err
				}
				if err := comms[r].Barrier(streams[r]); err != nil {
					return err
				}
				if graphs[r], err = streams[r].(device.GraphCapturer).EndCapture(); err != nil {
					return err
				}
				if err := graphs[r].Replay(streams[r]); err != nil {
					return err
				}
				return streams[r].Synchronize(ctx)
			}()
		})
	}
	both.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, errors.Join(comms[0].AsyncError(), comms[1].AsyncError()))
	require.NoError(t, graphs[0].Replay(streams[0])) // rank 1 does not replay
	require.NoError(t, streams[0].Synchronize(ctx))
	for r := range comms {
		require.ErrorIs(t, comms[r].AsyncError(), device.ErrTimeout)
		require.ErrorContains(t, comms[r].AsyncError(), "in a graph")
		require.ErrorIs(t, graphs[r].Replay(streams[r]), device.ErrTimeout)
		require.ErrorIs(t, comms[r].Close(), device.ErrTimeout)
		require.NoError(t, graphs[r].Close())
		require.NoError(t, streams[r].Close())
	}
}

// TestCollectiveNobodyComes: if the other rank never joins, the call ends with its context.
func TestCollectiveNobodyComes(t *testing.T) {
	d, _, _ := alone(t, device.CommunicatorOptions{})
	id, err := d.(device.Collectives).NewCommunicatorID()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = d.(device.Collectives).NewCommunicator(ctx, id, 0, 2, device.CommunicatorOptions{})
	require.ErrorIs(t, err, device.ErrTimeout)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "rank 1 is missing")
	require.Less(t, time.Since(began), 20*time.Second)
}

// TestNoNCCL: a library that is missing or too old is an error with the reason.
func TestNoNCCL(t *testing.T) {
	require.NoError(t, open(t).Close())
	for option, want := range map[string]string{
		"none":                   "opened with nccl=none",
		"/nowhere/libnccl.so.2":  "NCCL can't be used: /nowhere/libnccl.so.2: cannot open",
		old(t, "2.10.3", 21003):  "is version 2.10.3; 2.18 or later is needed",
		old(t, "incomplete", -1): "has no ncclGetUniqueId",
	} {
		d, err := device.Open("cuda:0?nccl=" + option)
		require.NoError(t, err)
		_, err = d.(device.Collectives).NewCommunicatorID()
		require.ErrorIs(t, err, device.ErrUnsupported)
		require.ErrorContains(t, err, want)
		_, err = d.(device.Collectives).NewCommunicator(context.Background(), device.CommunicatorID{1}, 0, 1, device.CommunicatorOptions{})
		require.ErrorIs(t, err, device.ErrUnsupported)
		_, err = device.Open("cuda:0?nccl=/another/libnccl.so.2")
		require.ErrorIs(t, err, device.ErrInvalid)
		require.NoError(t, d.Close())
	}
	_, err := device.Open("cuda:0?nccl=libnccl.so.2")
	require.ErrorContains(t, err, "give one absolute path of the library, or none")
}

// old builds a library that reports a version. With -1 it has no other functions.
func old(t *testing.T, name string, version int) string {
	source := fmt.Sprintf("int ncclGetVersion(int *v) { *v = %d; return 0; }\n", max(version, 22000))
	if version > 0 {
		source = fmt.Sprintf("int ncclGetVersion(int *v) { *v = %d; return 0; }\n", version)
		for _, f := range []string{"GetUniqueId", "CommInitRankConfig", "CommGetAsyncError", "GetLastError", "CommFinalize", "CommDestroy", "CommAbort", "GroupStart", "GroupEnd",
			"AllReduce", "Broadcast", "AllGather", "ReduceScatter", "Send", "Recv"} {
			source += fmt.Sprintf("int nccl%s(void) { return 3; }\n", f)
		}
	}
	return library(t, filepath.Join(t.TempDir(), name+".so"), source)
}
