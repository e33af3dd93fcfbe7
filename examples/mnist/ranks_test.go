package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/examples/mnist/internal/machine"
)

// trainRanks runs the program, and returns its results, weights and output.
func trainRanks(t *testing.T, args ...string) (r result, weights []byte, out string) {
	t.Helper()
	dir := t.TempDir()
	files := []string{"-json", filepath.Join(dir, "r.json"), "-save", filepath.Join(dir, "w")}
	var stdout, errs bytes.Buffer
	require.Zero(t, run(context.Background(), append(files, args...), &stdout, &errs), errs.String())
	text, err := os.ReadFile(filepath.Join(dir, "r.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	weights, err = os.ReadFile(filepath.Join(dir, "w"))
	require.NoError(t, err)
	return r, weights, stdout.String() + errs.String()
}

// TestParallelRanks: several ranks have the losses of one, with all flags for ranks.
func TestParallelRanks(t *testing.T) {
	pictures := rounds(96, 48)
	args := []string{"-data", dataOf(t, pictures, 10), "-batch", "24", "-epochs", "2", "-model", anyModel()}
	want, _, _ := trainRanks(t, args...)
	require.Equal(t, 1, want.Ranks)
	for _, n := range []int{2, 3, 4} {
		args := append(args, "-ranks", fmt.Sprint(n))
		plain, weights, out := trainRanks(t, args...)
		require.Equal(t, []int{n, want.Steps, want.Batch}, []int{plain.Ranks, plain.Steps, plain.Batch})
		for i := range want.Loss {
			require.InDelta(t, float64(want.Loss[i]), float64(plain.Loss[i]), 1e-5, "%d ranks", n)
		}
		require.Contains(t, out, fmt.Sprintf("%d pictures in steps of 24 on %d ranks", pictures, n))
		require.Equal(t, n, strings.Count(out, "peak of rank "))
		if testing.Short() && n != 3 { // one number of ranks has all options
			continue
		}
		for _, more := range []string{"-shard state", "-shard gradients", "-graph", "-graph -shard gradients"} {
			_, same, _ := trainRanks(t, append(args, strings.Fields(more)...)...)
			require.True(t, bytes.Equal(weights, same), "%d ranks, %s", n, more)
		}
	}
}

// TestParallelResume: an interrupted training continues with the same or another number of ranks.
func TestParallelResume(t *testing.T) {
	file := filepath.Join(t.TempDir(), "training")
	pictures, epochs, ranks := rounds(96, 60), rounds(9, 4), rounds(3, 2) // 60 pictures end in the middle of an epoch
	args := []string{"-data", dataOf(t, pictures, 10), "-batch", "12", "-epochs", fmt.Sprint(epochs), "-ranks", fmt.Sprint(ranks), "-shard", "state"}
	_, want, _ := trainRanks(t, args...)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var errs bytes.Buffer
	out := &stopAfter{lines: 4, stop: cancel}
	require.Equal(t, 130, run(ctx, append(args, "-resume", file), out, &errs), errs.String())
	require.Empty(t, errs.String())
	r, got, _ := trainRanks(t, append(args, "-resume", file)...)
	require.True(t, bytes.Equal(want, got))
	require.Less(t, len(r.Loss), epochs, "it has begun anew")
}

// TestParallelStops: if one rank is interrupted, all ranks stop after the same step.
func TestParallelStops(t *testing.T) {
	o := options{device: "host", model: anyModel(), optimizer: "sgd", seed: 1, ranks: 3, shard: "none"}
	parties, err := o.parties()
	require.NoError(t, err)
	steps := make([]int, 3)
	errs := atOnce(t.Context(), parties, func(p *party) error {
		o := o
		o.party = p
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b := digits.Batches{Data: synthetic(12 * 40), Size: 4, Rank: p.rank, Ranks: 3}
		tr, err := newTrainer(ctx, o, b.Fields(), 40, nil, &profiling{})
		if err == nil {
			_, err = tr.epoch(ctx, b.Epoch(0), b.Count(), func() {
				if steps[p.rank]++; p.rank == 1 && steps[1] == 5 {
					cancel()
				}
			})
		}
		return errors.Join(err, tr.close())
	})
	require.Equal(t, []int{stopEvery, stopEvery, stopEvery}, steps)
	require.ErrorIs(t, errs[0], errStopped)
	require.ErrorIs(t, errs[1], context.Canceled)
	require.ErrorIs(t, errs[2], errStopped)
}

// TestParallelOneDoesNotCome: the ranks don't wait for a rank that could not begin. Its error is
// the program's.
func TestParallelOneDoesNotCome(t *testing.T) {
	o := options{device: "host", model: anyModel(), optimizer: "sgd", ranks: 3}
	parties, err := o.parties()
	require.NoError(t, err)
	own := errors.New("its own")
	began := time.Now()
	errs := atOnce(t.Context(), parties, func(p *party) error {
		if p.rank == 1 {
			return own
		}
		o := o
		o.party = p
		tr, err := newTrainer(t.Context(), o, digits.Batches{Data: synthetic(4), Size: 4}.Fields(), 1, nil, &profiling{})
		return errors.Join(err, tr.close())
	})
	require.Less(t, time.Since(began), meeting/4)
	require.ErrorIs(t, errs[0], device.ErrTimeout)
	require.ErrorIs(t, errs[2], device.ErrTimeout)
	require.EqualError(t, cause(errs), "rank 1 of 3: its own")
}

// TestParallelDevices: each rank opens the GPU of its number with the options of
// -device, unless -device has a number.
func TestParallelDevices(t *testing.T) {
	second := &party{rank: 5, size: 8, device: 1}
	for name, want := range map[string]string{"cuda": "cuda:1", "cuda?nccl=/a/b": "cuda:1?nccl=/a/b", "cuda:3?nccl=none": "cuda:3?nccl=none", "host": "host"} {
		require.Equal(t, want, (&options{device: name}).deviceOf(second))
		require.Equal(t, name, (&options{device: name}).deviceOf(nil))
	}
}

// TestParallelMemory: the machine's memory limits the number of ranks, whose devices share half of
// it.
func TestParallelMemory(t *testing.T) {
	for _, c := range []struct {
		ranks  int
		memory int64
		device string
		want   string
	}{
		{1, 1, "", ""},
		{5000, 0, "host", ""},
		{2, 256 << 20, "host?capacity=67108864", ""},
		{2, 256<<20 - 1, "host?capacity=67108863", "-ranks 2: each takes 128 MiB or more, and this machine has 256 MiB, which is enough for 1"},
		{4, 32 << 30, "host", ""},
		{8, 32 << 30, "host?capacity=2147483648", ""},
		{60_000, 32 << 30, "host?capacity=286331", "-ranks 60000: each takes 128 MiB or more, and this machine has 32 GiB, which is enough for 256"},
	} {
		o := options{device: "host", ranks: c.ranks, memory: c.memory}
		err := o.checkRanks()
		require.Equal(t, c.want != "", err != nil, c)
		if err != nil {
			require.EqualError(t, err, c.want)
		}
		if c.ranks > 1 {
			require.Equal(t, c.device, o.deviceOf(&party{size: c.ranks}), c)
		}
		o.capacity = "1GiB"
		require.Equal(t, "host?capacity=1GiB", o.deviceOf(&party{size: c.ranks}))
	}
	if runtime.GOOS == "linux" {
		require.Greater(t, machine.Memory(), int64(1<<24))
		var out, errs bytes.Buffer
		require.Equal(t, 1, run(t.Context(), []string{"-ranks", "1000000", "-batch", "1000000"}, &out, &errs))
		require.Equal(t, 1, run(t.Context(), []string{"-ranks", "60000", "-batch", "60000"}, &out, &errs))
		require.Regexp(t, `mnist: -ranks 60000: each takes 128 MiB or more, and this machine has .*, which is enough for \d+\n$`, errs.String())
	}
}

// TestParallelTimeout: if a rank hangs, the training of the others ends within -timeout.
func TestParallelTimeout(t *testing.T) {
	o := options{device: "host", model: anyModel(), optimizer: "sgd", ranks: 2, shard: "none", timeout: 300 * time.Millisecond}
	parties, err := o.parties()
	require.NoError(t, err)
	over := make(chan struct{})
	errs := atOnce(t.Context(), parties, func(p *party) error {
		o := o
		o.party = p
		b := digits.Batches{Data: synthetic(4 * 40), Size: 4, Rank: p.rank, Ranks: 2}
		tr, err := newTrainer(t.Context(), o, b.Fields(), 40, nil, &profiling{})
		if p.rank == 1 {
			<-over
			return errors.Join(err, tr.close())
		}
		began := time.Now()
		if err == nil {
			_, err = tr.epoch(t.Context(), b.Epoch(0), b.Count(), func() {})
		}
		close(over)
		if took := time.Since(began); took > 10*time.Second {
			err = fmt.Errorf("after %v: %w", took, err)
		}
		return errors.Join(err, tr.close())
	})
	require.ErrorIs(t, errs[0], device.ErrTimeout)
	require.ErrorContains(t, errs[0], "rank 1 is missing")
	require.NotContains(t, errs[0].Error(), "after ")
	require.NoError(t, errs[1])
}

// TestParallelProcesses: of a launcher's processes, only rank 0 writes files and prints, whichever
// ends last.
func TestParallelProcesses(t *testing.T) {
	data := dataOf(t, 96, 10)
	var all []options
	for range 2 {
		dir := t.TempDir() // as if each were a process: all that it would write is there
		o, err := parseOptions([]string{"-data", data, "-batch", "24", "-epochs", "2", "-ranks", "2", "-model", anyModel(), "-json", filepath.Join(dir, "json"), "-save", filepath.Join(dir, "save"),
			"-steps", filepath.Join(dir, "steps"), "-memprofile", filepath.Join(dir, "memory"), "-resume", filepath.Join(dir, "resume"), "-http", "localhost:0"}, os.Stderr)
		require.NoError(t, err)
		all = append(all, o)
	}
	parties, err := all[0].parties()
	require.NoError(t, err)
	var outs [2]bytes.Buffer
	require.NoError(t, cause(atOnce(t.Context(), parties, func(p *party) error {
		return all[p.rank].runParties(t.Context(), []*party{p}, &outs[p.rank], os.Stderr)
	})))
	written := func(o options) (names []string) {
		for _, name := range []string{o.json, o.save, o.steps, o.memprofile, o.resume} {
			if _, err := os.Stat(name); err == nil {
				names = append(names, filepath.Base(name))
			}
		}
		return names
	}
	require.Equal(t, []string{"json", "save", "steps", "memory", "resume"}, written(all[0]))
	require.Contains(t, outs[0].String(), "on 2 ranks")
	require.Empty(t, written(all[1]))
	require.Empty(t, outs[1].String())
}

// TestParallelBadInput: an error is one line. Running out of memory has up to four more, indented.
func TestParallelBadInput(t *testing.T) {
	data := dataOf(t, 128, 10)
	for _, c := range []struct {
		args, rank, size, want string
	}{
		{"-ranks 0", "", "", "-ranks 0: want at least 1"},
		{"-ranks 2 -timeout 0s", "", "", "-timeout 0s: want more than 0"},
		{"-ranks 3", "", "", "-batch, which is 128, that is a multiple"},
		{"-shard all", "", "", "want none, state, gradients"},
		{"-ranks 2", "0", "2", "the launcher has started 2 processes"},
		{"", "1", "4", "want -ranks 4 without a launcher"},
		{"", "nonsense", "4", "RANK"},
		{"-ranks 2 -capacity 24MiB", "", "", "out of memory"},
		{"-ranks 2 -capacity 1MiB", "", "", "out of memory"},
	} {
		t.Run(c.args+c.rank, func(t *testing.T) {
			if c.rank != "" {
				t.Setenv("RANK", c.rank)
				t.Setenv("WORLD_SIZE", c.size)
				t.Setenv("LOCAL_RANK", "0")
				t.Setenv("MASTER_ADDR", "127.0.0.1")
				t.Setenv("MASTER_PORT", "29500")
			}
			var out, errs bytes.Buffer
			require.Equal(t, 1, run(context.Background(), append([]string{"-data", data}, strings.Fields(c.args)...), &out, &errs))
			require.Contains(t, errs.String(), c.want)
			require.Equal(t, 1, strings.Count(strings.ReplaceAll(errs.String(), "\n\t", "; "), "\n"), errs.String())
			if c.want != "out of memory" {
				require.NotContains(t, errs.String(), "\t")
			}
		})
	}
}
