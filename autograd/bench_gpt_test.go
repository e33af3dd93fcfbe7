package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// gptSize is the size of a transformer like runGPT.
type gptSize struct {
	name                                          string
	layers, heads, width, steps, rows, vocabulary int
}

// BenchmarkGPT is one training step of transformers with AdamW, their embedding tied to the last
// layer: in float32 and bfloat16, with and without a checkpoint around every block, called and
// captured; and with the activations of half of the blocks, or the parameters of all, offloaded,
// called, without and with reuse across streams. MiB-at-most is the greatest memory that was
// allocated, with workspaces; MiB-parameters, -forward and -reserved are the parameters with the
// optimiser's state, the further memory of the forward pass, and the memory that the cache holds at
// the end.
//
//	gpt12   12 layers, 12 heads, width 768; 8 sequences of 512 of 50,304 tokens, on GPUs of 16 GiB and more
//	gpt4    4 layers, 4 heads, width 128; 4 sequences of 64 of 1,024 tokens
func BenchmarkGPT(b *testing.B) {
	for _, size := range []gptSize{{"gpt12", 12, 12, 768, 512, 8, 50304}, {"gpt4", 4, 4, 128, 64, 4, 1024}} {
		for _, dtype := range []tensor.Dtype{tensor.Float32, tensor.BFloat16} {
			for _, checkpointed := range []bool{false, true} {
				for _, how := range []string{"called", "captured"} {
					name := fmt.Sprintf("%s/%v", size.name, dtype)
					if checkpointed {
						name += "/checkpointed"
					}
					b.Run(name+"/"+how, func(b *testing.B) {
						size.benchmark(b, gptRun{dtype: dtype, checkpointed: checkpointed, captured: how == "captured"})
					})
				}
			}
			for _, reuse := range []memcache.StreamReuse{memcache.ReuseNever, memcache.ReuseBeforeGrowth} {
				b.Run(fmt.Sprintf("%s/%v/offloaded/%v", size.name, dtype, reuse), func(b *testing.B) {
					size.benchmark(b, gptRun{dtype: dtype, offloaded: true, reuse: reuse})
				})
				b.Run(fmt.Sprintf("%s/%v/parameters/%v", size.name, dtype, reuse), func(b *testing.B) {
					size.benchmark(b, gptRun{dtype: dtype, parameters: true, reuse: reuse})
				})
			}
		}
	}
}

// gptRun describes how a step runs.
type gptRun struct {
	dtype                  tensor.Dtype
	checkpointed, captured bool
	// the activations of the first half of the blocks are in pinned memory until the backward pass
	offloaded  bool
	parameters bool // the parameters of each block are in pinned memory between their uses
	reuse      memcache.StreamReuse
	inBackward bool // the optimiser steps in the backward pass, in pieces of
	piece      int64
}

// BenchmarkMinimizeInBackward is BenchmarkGPT's step with Minimize and with MinimizeInBackward,
// called.
//
//	gpt12   as there; in pieces of 32 MiB
//	gpt8    8 layers, 8 heads, width 256; 1 sequence of 64 of 4,096 tokens; in pieces of 4 MiB
func BenchmarkMinimizeInBackward(b *testing.B) {
	for _, c := range []struct {
		gptSize
		piece int64
	}{{gptSize{"gpt12", 12, 12, 768, 512, 8, 50304}, 0}, {gptSize{"gpt8", 8, 8, 256, 64, 1, 4096}, 4 << 20}} {
		for _, dtype := range []tensor.Dtype{tensor.Float32, tensor.BFloat16} {
			for _, checkpointed := range []bool{false, true} {
				for _, inBackward := range []bool{false, true} {
					b.Run(fmt.Sprintf("%s/%v/checkpointed=%v/inBackward=%v", c.name, dtype, checkpointed, inBackward), func(b *testing.B) {
						c.benchmark(b, gptRun{dtype: dtype, checkpointed: checkpointed, inBackward: inBackward, piece: c.piece})
					})
				}
			}
		}
	}
}

// BenchmarkGPTLargestBatch reports the number of sequences of gpt12 that train in bfloat16 in 8 GiB
// in all, without checkpoints and with them.
func BenchmarkGPTLargestBatch(b *testing.B) {
	size := gptSize{"gpt12", 12, 12, 768, 512, 0, 50304}
	for _, checkpointed := range []bool{false, true} {
		b.Run(fmt.Sprintf("checkpointed=%v", checkpointed), func(b *testing.B) {
			bn := tapetest.Open(b, 8<<30)
			if _, total, err := bn.Dev.MemInfo(); err != nil || total < 16<<30 {
				b.Skipf("it takes a GPU of 16 GiB: this device has %d bytes (%v)", total, err)
			}
			require.NoError(b, bn.Cache.SetMemoryLimit(8<<30))
			in := nn.Init(bn.Ctx, bn.RT, nn.Seed(1), nn.ComputeDtype(tensor.BFloat16))
			model := size.model(in, gptRun{checkpointed: checkpointed}, nil)
			opt := nn.Own(in, optim.NewAdamW(nn.ParametersOf(model), optim.AdamConfig{LR: new(1e-3)}))
			require.NoError(b, in.Err())
			size.rows = 8
			for ; ; size.rows++ {
				x, y := size.batch(bn)
				for _, tape := range in.Steps(2) {
					logits := model.Forward(tape, tape.Input(x))
					loss := tape.CrossEntropy(tape.Reshape(logits, -1, size.vocabulary), y)
					logits.Release()
					optim.Minimize(tape, loss, opt)
				}
				require.NoError(b, errors.Join(x.Release(), y.Release()))
				if in.Err() != nil {
					require.ErrorIs(b, in.Err(), memcache.ErrOutOfMemory)
					break
				}
				require.NoError(b, bn.Cache.EmptyCache(bn.Ctx))
			}
			b.ReportMetric(float64(size.rows-1), "sequences")
			_ = in.Close() // returns the out-of-memory error again
		})
	}
}

// gpt is runGPT of a given size. Its blocks may be checkpointed.
type gpt struct {
	Tok, Pos *nn.Embedding
	Blocks   []*gptBlock
	Ln       *nn.LayerNorm

	checkpointed bool
	offload      *tensor.Offloader // of the first half of the blocks, or nil
}

type gptBlock struct {
	runBlock
	heads int
}

func (size gptSize) model(in *nn.Initializer, run gptRun, offload *tensor.Offloader) *gpt {
	m := &gpt{Tok: in.Embedding(size.vocabulary, size.width), Pos: in.Embedding(size.steps, size.width), Ln: in.LayerNorm(size.width), checkpointed: run.checkpointed, offload: offload}
	for range size.layers {
		m.Blocks = append(m.Blocks, &gptBlock{*newRunBlock(in, size.width), size.heads})
	}
	return m
}

func (m *gptBlock) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		a := t.SelfAttention(m.Qkv.Forward(t, m.Ln1.Forward(t, x)), m.heads, true, autograd.AttentionConfig{Causal: true})
		h, n := m.Ln2.ForwardAdd(t, x, m.Proj.Forward(t, a))
		return t.Add(h, m.Out.Forward(t, t.GELUTanh(m.Fc.Forward(t, n))))
	})
}

func (m *gpt) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := t.Add(m.Tok.Forward(t, x), t.Narrow(t.Param(m.Pos.Weight), 0, 0, x.Shape()[1]))
		for i, b := range m.Blocks {
			in := h
			forward := func() *autograd.Variable { return b.Forward(t, in) }
			switch {
			case m.checkpointed:
				h = remat.Checkpoint(t, forward)
			case m.offload != nil && i < len(m.Blocks)/2:
				h = offload.Activations(t, m.offload, forward)
			default:
				h = forward()
			}
			in.Release()
		}
		return t.Linear(m.Ln.Forward(t, h), t.Param(m.Tok.Weight), nil)
	})
}

// batch returns the same sequences and labels each time.
func (size gptSize) batch(bn *tapetest.Bench) (x, y *tensor.Tensor) {
	tokens := make([]int32, size.rows*size.steps)
	for i := range tokens {
		tokens[i] = int32(i * 7919 % size.vocabulary)
	}
	return tapetest.Upload(bn, tokens, size.rows, size.steps), tapetest.Upload(bn, tokens, len(tokens))
}

func (size gptSize) benchmark(b *testing.B, run gptRun) {
	capacity := int64(12 << 30)
	if size.layers < 12 {
		capacity = 2 << 30
	}
	bn := tapetest.OpenConfigured(b, capacity, memcache.Config{ReuseAcrossStreams: run.reuse})
	if _, total, err := bn.Dev.MemInfo(); err != nil || size.layers >= 12 && total < 16<<30 {
		b.Skipf("it takes a GPU of 16 GiB: this device has %d bytes (%v)", total, err)
	}
	var off *tensor.Offloader
	if run.offloaded || run.parameters {
		var err error
		off, err = tensor.NewOffloader(bn.RT, tensor.OffloadConfig{})
		require.NoError(b, err)
		defer func() { require.NoError(b, off.Close()) }()
	}
	in := nn.Init(bn.Ctx, bn.RT, nn.Seed(1), nn.ComputeDtype(run.dtype))
	defer func() { require.NoError(b, in.Close()) }()
	model := size.model(in, run, off)
	if run.parameters {
		model.offload = nil
		for _, block := range model.Blocks {
			require.NoError(b, offload.Parameters(bn.Ctx, nn.ParametersOf(block), off))
		}
	}
	opt := nn.Own(in, optim.NewAdamW(nn.ParametersOf(model), optim.AdamConfig{LR: new(1e-3), WeightDecay: new(0.01)}))
	require.NoError(b, in.Err())
	require.NoError(b, opt.Prepare(bn.Ctx))
	x, y := size.batch(bn)
	standing := bn.Cache.MemoryAllocated()
	forward := int64(0)
	called := func(ctx context.Context) error {
		for _, tape := range in.Steps(1) {
			tape.SetContext(ctx)
			logits := model.Forward(tape, tape.Input(x))
			loss := tape.CrossEntropy(tape.Reshape(logits, -1, size.vocabulary), y)
			logits.Release()
			forward = bn.Cache.MemoryAllocated() - standing
			if run.inBackward {
				optim.InBackward(tape, loss, opt, run.piece)
			} else {
				optim.Minimize(tape, loss, opt)
			}
		}
		return in.Err()
	}
	step := called
	for range 3 {
		require.NoError(b, called(bn.Ctx))
	}
	before := forward
	if run.captured {
		require.NoError(b, bn.Cache.EmptyCache(bn.Ctx)) // memory of the first steps outside of the graph's pool
		graph, err := bn.RT.Capture(bn.Ctx, called)
		require.NoError(b, err)
		defer func() { require.NoError(b, graph.Close()) }()
		step = graph.Replay
		require.NoError(b, step(bn.Ctx))
	}
	require.NoError(b, bn.RT.Synchronize(bn.Ctx))
	bn.Cache.ResetPeakStats()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N { // not b.Loop, which does not time what comes after it
		if err := step(bn.Ctx); err != nil {
			b.Fatal(errors.Join(err, in.Err()))
		}
	}
	require.NoError(b, bn.RT.Synchronize(bn.Ctx))
	b.StopTimer()
	mib := func(bytes int64, unit string) { b.ReportMetric(float64(bytes)/(1<<20), unit) }
	mib(bn.Cache.MaxMemoryAllocated(), "MiB-at-most")
	mib(standing, "MiB-parameters")
	mib(before, "MiB-forward")
	mib(bn.Cache.MemoryReserved(), "MiB-reserved")
	if off != nil {
		mib(off.Stats().OffloadedBytes.Peak, "MiB-offloaded")
	}
}
