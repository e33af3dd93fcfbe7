package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/profiledir"
)

// TestProfiledSteps: the trace has exactly the profiled steps, even if their profiles come late.
// Every byte at their peaks has a line, also if it was allocated before the steps.
func TestProfiledSteps(t *testing.T) {
	dir := t.TempDir()
	var out, errs bytes.Buffer
	require.Equal(t, 0, run(context.Background(), []string{"-data", dataOf(t, 128, 10), "-batch", "16", "-epochs", "1",
		"-memprofile", dir, "-profile-steps", "2,4,6,8"}, &out, &errs), errs.String())
	text, err := os.ReadFile(filepath.Join(dir, "trace.json"))
	require.NoError(t, err)
	var events []struct {
		Name, Ph, Cat string
		TS, Dur       float64
	}
	require.NoError(t, json.Unmarshal(text, &events))
	var steps []string
	inside := func(ts float64) bool { return false }
	for _, e := range events {
		if e.Cat == "step" {
			steps = append(steps, e.Name)
			others := inside
			inside = func(ts float64) bool { return e.TS <= ts && ts <= e.TS+e.Dur || others(ts) }
		}
	}
	for _, e := range events {
		require.True(t, e.Name != "memory allocated" || inside(e.TS), "of no other step at %v", e.TS)
	}
	require.Equal(t, []string{"step 2", "step 4", "step 6", "step 8"}, steps)
	for _, n := range []string{"step-2", "step-8", "peak", "heap"} {
		f, err := os.Open(filepath.Join(dir, n+".pb.gz"))
		require.NoError(t, err)
		p, err := profile.Parse(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		for _, s := range p.Sample {
			if !hasLine(s) {
				for i, kind := range p.SampleType {
					if kind.Type == "peak_space" || kind.Type == "inuse_space" {
						require.Zero(t, s.Value[i], "%s: %v", n, s.Label)
					}
				}
			}
		}
	}
}

func hasLine(s *profile.Sample) bool {
	for _, l := range s.Location {
		for _, line := range l.Line {
			if strings.HasSuffix(line.Function.Filename, ".go") && line.Line > 0 {
				return true
			}
		}
	}
	return false
}

// TestProfilingIsNotTheStep: the file of a step's peak is written after the step has ended.
func TestProfilingIsNotTheStep(t *testing.T) {
	dir := t.TempDir()
	folder, err := profiledir.New(dir, profiledir.Options{Steps: profiledir.StepSet{{1, 1}}})
	require.NoError(t, err)
	b := digits.Batches{Data: synthetic(16), Size: 16, InOrder: true}
	tr, err := newTrainer(context.Background(), options{device: "host", model: "mlp", optimizer: "adam", seed: 1}, b.Fields(), 1, nil, &profiling{folder: folder})
	require.NoError(t, err)
	ended := 0
	tr.profiler, err = trace.NewProfiler(trace.ProfilerConfig{Cache: tr.env.Cache(), OnProfile: func(trace.StepProfile) {
		ended++
		require.NoFileExists(t, filepath.Join(dir, "step-1.pb.gz"))
	}})
	require.NoError(t, err)
	tr.onClose(tr.profiler.Close)
	_, err = tr.epoch(context.Background(), b.Epoch(0), 1, func() {})
	require.NoError(t, err)
	require.Equal(t, 1, ended)
	require.FileExists(t, filepath.Join(dir, "step-1.pb.gz"))
	require.True(t, slices.ContainsFunc(tr.env.Cache().History(), func(e memcache.HistoryEntry) bool {
		return e.Action == memcache.ActionFreeRequested && e.Stack != nil
	}), "its frees have stacks")
	require.NoError(t, tr.close())
}

// TestStepsOfATrainingThatGoesOn: the steps of a continued training are appended to those of
// earlier runs.
func TestStepsOfATrainingThatGoesOn(t *testing.T) {
	dir, data := t.TempDir(), dataOf(t, 128, 10)
	steps := func(args ...string) (list []int64) {
		var out, errs bytes.Buffer
		name := filepath.Join(dir, "steps.jsonl")
		require.Equal(t, 0, run(context.Background(), append([]string{"-data", data, "-batch", "64", "-epochs", "1", "-steps", name}, args...), &out, &errs), errs.String())
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			var p trace.StepProfile
			require.NoError(t, json.Unmarshal([]byte(line), &p))
			list = append(list, p.Step)
		}
		return list
	}
	kept := filepath.Join(dir, "training")
	for _, args := range [][]string{nil, nil, {"-resume", kept}, {"-resume", kept}} {
		require.Equal(t, []int64{1, 2}, steps(args...), "%v: another training begins anew, and what is done stays", args)
	}
}

// TestTelemetryOfARunThatCannotProfile: telemetry is sent even if the profiles can't be made.
func TestTelemetryOfARunThatCannotProfile(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, 1, run(context.Background(), []string{"-data", dataOf(t, 128, 10), "-trace", "stdout", "-http", "no address"}, &out, &errs))
	require.Contains(t, errs.String(), "-http")
	require.Contains(t, out.String(), `"Name":"mnist"`)
	require.Regexp(t, `spans: 0 made, .* 0 dropped\n`, errs.String())
}
