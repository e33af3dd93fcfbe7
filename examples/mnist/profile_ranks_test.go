package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/ranks"
)

// TestParallelRankProfile: all ranks write their steps, the page is made from them, and the spans
// of all ranks are exported, those of a step in one trace.
func TestParallelRankProfile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ranks")
	r, _, out := trainRanks(t, "-data", dataOf(t, 48, 10), "-batch", "24", "-epochs", "2", "-ranks", "3", "-rankprofile", dir, "-trace", "stdout", "-model", anyModel())
	require.Equal(t, 4, r.Steps)
	for rank := range 3 {
		f, err := os.Open(rankFileOf(dir, rank))
		require.NoError(t, err)
		defer f.Close()
		lines := 0
		for scan := bufio.NewScanner(f); scan.Scan(); lines++ {
			var p trace.StepProfile
			require.NoError(t, json.Unmarshal(scan.Bytes(), &p))
			require.Equal(t, [2]int{rank, 3}, [2]int{p.Rank, p.WorldSize})
			require.NotEmpty(t, p.Collectives)
			require.NotEmpty(t, p.Peak.Categories)
		}
		require.Equal(t, 4, lines)
	}
	page, err := os.ReadFile(filepath.Join(dir, "ranks.html"))
	require.NoError(t, err)
	require.Contains(t, string(page), "mnist, "+anyModel()+": 3 ranks")
	require.Contains(t, out, "rank 0 of 3\n")
	report, err := ranks.ReadFiles(ranks.Options{}, rankFileOf(dir, 2), rankFileOf(dir, 0), rankFileOf(dir, 1))
	require.NoError(t, err)
	require.Empty(t, report.Notes)
	require.Positive(t, report.Matched)

	named := map[string]bool{} // by the page, as text
	for _, w := range report.Waits {
		require.Contains(t, string(page), `"trace_id":"`+w.TraceID+`"`)
		named[w.TraceID] = true
	}
	traces := map[string]map[int]bool{} // of steps' spans: the ranks
	below := map[int]bool{}             // of which ranks there are spans of what steps do
	for _, s := range exportedSpans(t, out) {
		if s.name != "cistern.step" {
			require.Contains(t, []int{0, 1, 2}, s.rank, s.name)
			below[s.rank] = true
			continue
		}
		if traces[s.trace] == nil {
			traces[s.trace] = map[int]bool{}
		}
		traces[s.trace][s.rank] = true
	}
	require.Len(t, below, 3)
	require.Len(t, traces, 4, "as many as steps")
	for id, of := range traces {
		require.Len(t, of, 3, id)
		require.True(t, named[id], id)
	}
}

// exportedSpan is a span of the library in the output of -trace stdout. rank is -1 if it has none.
type exportedSpan struct {
	name, trace string
	rank        int
}

func exportedSpans(t *testing.T, out string) (all []exportedSpan) {
	t.Helper()
	for _, line := range strings.Split(out, "\n") {
		var s struct {
			Name        string
			SpanContext struct{ TraceID string }
			Attributes  []struct {
				Key   string
				Value struct{ Value any }
			}
		}
		if json.Unmarshal([]byte(line), &s) != nil || !strings.HasPrefix(s.Name, "cistern.") {
			continue
		}
		rank := -1
		for _, a := range s.Attributes {
			if a.Key == string(trace.KeyRank) {
				rank = int(a.Value.Value.(float64))
			}
		}
		all = append(all, exportedSpan{s.Name, s.SpanContext.TraceID, rank})
	}
	return all
}

// TestParallelStraggler: the slow rank is named as the straggler, and the other ranks wait.
func TestParallelStraggler(t *testing.T) {
	const slow = 2
	dir := t.TempDir()
	o := options{device: "host", model: anyModel(), optimizer: "sgd", seed: 1, ranks: 3, shard: "none", rankprofile: dir}
	parties, err := o.parties()
	require.NoError(t, err)
	errs := atOnce(t.Context(), parties, func(p *party) error {
		o := o
		o.party = p
		b := digits.Batches{Data: synthetic(12 * 9), Size: 4, Rank: p.rank, Ranks: 3}
		profiling := &profiling{}
		if err := profiling.beginRank(o); err != nil {
			return err
		}
		tr, err := newTrainer(t.Context(), o, b.Fields(), 9, nil, profiling)
		if err == nil {
			last := time.Now()
			_, err = tr.epoch(t.Context(), b.Epoch(0), b.Count(), func() {
				if p.rank == slow { // however slow the machine makes all of them
					time.Sleep(100*time.Millisecond + 3*time.Since(last))
					last = time.Now()
				}
			})
			err = errors.Join(err, tr.profiler.Flush(t.Context()))
		}
		return errors.Join(err, tr.close())
	})
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, o.reportRanks(parties))
	r, err := ranks.ReadFiles(ranks.Options{}, rankFileOf(dir, 0), rankFileOf(dir, 1), rankFileOf(dir, 2))
	require.NoError(t, err)
	require.Equal(t, slow, r.Straggler, r.Headline())
	require.Greater(t, r.Ranks[slow].HeldUp, 300*time.Millisecond)
	require.Less(t, r.Ranks[slow].Waited, r.Ranks[0].Waited/2)
	page, err := os.ReadFile(filepath.Join(dir, "ranks.html"))
	require.NoError(t, err)
	require.Contains(t, string(page), "the straggler is rank 2")
}

// TestParallelRankProfileBadInput: an error is one line.
func TestParallelRankProfileBadInput(t *testing.T) {
	data, file := dataOf(t, 24, 10), filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	for _, c := range []struct{ args, want string }{
		{"-rankprofile " + t.TempDir(), "want -ranks, or a launcher"},
		{"-ranks 2 -batch 12 -rankprofile " + file, "-rankprofile"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, 1, run(context.Background(), append([]string{"-data", data}, strings.Fields(c.args)...), &out, &errs))
		require.Contains(t, errs.String(), c.want)
		require.Equal(t, 1, strings.Count(errs.String(), "\n"), errs.String())
	}
}
