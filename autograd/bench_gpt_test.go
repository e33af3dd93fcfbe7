package autograd

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// gptSize is a transformer as runGPT is, of any size.
type gptSize struct {
	name                                          string
	layers, heads, width, steps, rows, vocabulary int
}

// BenchmarkGPT is one training step of transformers with AdamW, their embedding tied to the last layer: in float32 and bfloat16, with and without a checkpoint
// around every block, called and captured. MiB-at-most is the greatest memory that was allocated, with workspaces; MiB-parameters, -forward and -reserved are the
// parameters with the optimiser's state, what the forward pass holds besides, and what the cache holds at the end.
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
					b.Run(name+"/"+how, func(b *testing.B) { size.benchmark(b, dtype, checkpointed, how == "captured") })
				}
			}
		}
	}
}

// gpt is runGPT of a size, whose blocks may be checkpointed.
type gpt struct {
	Tok, Pos *Embedding
	Blocks   []*gptBlock
	Ln       *LayerNorm

	checkpointed bool
}

type gptBlock struct {
	runBlock
	heads int
}

func (size gptSize) model(in *Initializer, checkpointed bool) *gpt {
	m := &gpt{Tok: in.Embedding(size.vocabulary, size.width), Pos: in.Embedding(size.steps, size.width), Ln: in.LayerNorm(size.width), checkpointed: checkpointed}
	for range size.layers {
		m.Blocks = append(m.Blocks, &gptBlock{*newRunBlock(in, size.width), size.heads})
	}
	return m
}

func (m *gptBlock) Forward(t *Tape, x *Variable) *Variable {
	return t.Frame(func() *Variable {
		a := t.SelfAttention(m.Qkv.Forward(t, m.Ln1.Forward(t, x)), m.heads, true, AttentionConfig{Causal: true})
		h := t.Add(x, m.Proj.Forward(t, a))
		return t.Add(h, m.Out.Forward(t, t.GELUTanh(m.Fc.Forward(t, m.Ln2.Forward(t, h)))))
	})
}

func (m *gpt) Forward(t *Tape, x *Variable) *Variable {
	return t.Frame(func() *Variable {
		h := t.Add(m.Tok.Forward(t, x), t.Narrow(t.Param(m.Pos.Weight), 0, 0, x.Shape()[1]))
		for _, b := range m.Blocks {
			in := h
			if m.checkpointed {
				h = t.Checkpoint(func() *Variable { return b.Forward(t, in) })
			} else {
				h = b.Forward(t, in)
			}
			in.Release()
		}
		return t.Linear(m.Ln.Forward(t, h), t.Param(m.Tok.Weight), nil)
	})
}

func (size gptSize) benchmark(b *testing.B, dtype tensor.Dtype, checkpointed, captured bool) {
	capacity := int64(12 << 30)
	if size.layers < 12 {
		capacity = 2 << 30
	}
	bn := open(b, capacity)
	if _, total, err := bn.dev.MemInfo(); err != nil || size.layers >= 12 && total < 16<<30 {
		b.Skipf("it takes a GPU of 16 GiB: this device has %d bytes (%v)", total, err)
	}
	in := Init(bn.ctx, bn.rt, Seed(1), ComputeDtype(dtype))
	defer func() { require.NoError(b, in.Close()) }()
	model := size.model(in, checkpointed)
	opt := in.AdamW(ParametersOf(model), AdamConfig{LR: new(1e-3), WeightDecay: 0.01})
	require.NoError(b, in.Err())
	require.NoError(b, opt.Prepare(bn.ctx))
	tokens := make([]int32, size.rows*size.steps)
	for i := range tokens {
		tokens[i] = int32(i * 7919 % size.vocabulary)
	}
	x, y := upload(bn, tokens, size.rows, size.steps), upload(bn, tokens, len(tokens))
	standing := bn.cache.MemoryAllocated()
	forward := int64(0)
	called := func(ctx context.Context) error {
		for _, tape := range in.Steps(1) {
			tape.SetContext(ctx)
			logits := model.Forward(tape, tape.Input(x))
			loss := tape.CrossEntropy(tape.Reshape(logits, -1, size.vocabulary), y)
			logits.Release()
			forward = bn.cache.MemoryAllocated() - standing
			tape.Minimize(loss, opt)
		}
		return in.Err()
	}
	step := called
	for range 3 {
		require.NoError(b, called(bn.ctx))
	}
	before := forward
	if captured {
		require.NoError(b, bn.cache.EmptyCache(bn.ctx)) // what the first steps held outside of the graph's pool
		graph, err := bn.rt.Capture(bn.ctx, called)
		require.NoError(b, err)
		defer func() { require.NoError(b, graph.Close()) }()
		step = graph.Replay
		require.NoError(b, step(bn.ctx))
	}
	require.NoError(b, bn.rt.Synchronize(bn.ctx))
	bn.cache.ResetPeakStats()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N { // not b.Loop, which does not time what comes after it
		if err := step(bn.ctx); err != nil {
			b.Fatal(errors.Join(err, in.Err()))
		}
	}
	require.NoError(b, bn.rt.Synchronize(bn.ctx))
	b.StopTimer()
	mib := func(bytes int64, unit string) { b.ReportMetric(float64(bytes)/(1<<20), unit) }
	mib(bn.cache.MaxMemoryAllocated(), "MiB-at-most")
	mib(standing, "MiB-parameters")
	mib(before, "MiB-forward")
	mib(bn.cache.MemoryReserved(), "MiB-reserved")
}
