package nn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/autograd/torchfile"
	"github.com/cistern-ml/cistern/tensor"
)

// gpt2 is a model of GPT-2's layout. Its head is tied to the embedding: both have one parameter.
type gpt2 struct {
	Tokens, Places *nn.Embedding
	Blocks         []*gpt2Block
	Norm           *nn.LayerNorm
	Head           *nn.Linear
}

// gpt2Block is a layer of a transformer, with the norms before attention and the two linear layers.
type gpt2Block struct {
	AttentionNorm *nn.LayerNorm
	Attention     *nn.MultiHeadAttention
	FeedNorm      *nn.LayerNorm
	Up, Down      *nn.Linear
}

func newGPT2(in *nn.Initializer, tokens, places, width, layers, heads int) *gpt2 {
	m := &gpt2{Tokens: in.Embedding(tokens, width), Places: in.Embedding(places, width), Norm: in.LayerNorm(width)}
	for range layers {
		m.Blocks = append(m.Blocks, &gpt2Block{in.LayerNorm(width), in.MultiHeadAttention(width, heads, nn.BatchFirst(), nn.Causal()),
			in.LayerNorm(width), in.Linear(width, 4*width), in.Linear(4*width, width)})
	}
	m.Head = &nn.Linear{Weight: m.Tokens.Weight}
	return m
}

// Forward returns the logits (batch, steps, tokens) of tokens (batch, steps).
func (m *gpt2) Forward(t *autograd.Tape, tokens *autograd.Variable) *autograd.Variable {
	places := make([]int32, tokens.Shape()[1])
	for i := range places {
		places[i] = int32(i)
	}
	x := t.Add(m.Tokens.Forward(t, tokens), m.Places.Forward(t, autograd.Upload(t, places)))
	for _, b := range m.Blocks {
		x = t.Add(x, b.Attention.Forward(t, b.AttentionNorm.Forward(t, x)))
		x = t.Add(x, b.Down.Forward(t, t.GELUTanh(b.Up.Forward(t, b.FeedNorm.Forward(t, x)))))
	}
	return m.Head.Forward(t, m.Norm.Forward(t, x))
}

// gpt2Names are names of Hugging Face's GPT-2 with those of the model.
var gpt2Names = strings.NewReplacer(
	"transformer.wte.", "tokens.", "transformer.wpe.", "places.", "transformer.ln_f.", "norm.", "lm_head.", "head.", "transformer.h.", "blocks.",
	".ln_1.", ".attention_norm.", ".attn.c_attn.", ".attention.in_proj_", ".attn.c_proj.", ".attention.out_proj.",
	".ln_2.", ".feed_norm.", ".mlp.c_fc.", ".up.", ".mlp.c_proj.", ".down.")

// loadGPT2 loads a source with Hugging Face's names. Its causal masks, which are buffers, are left
// out, and the weights of Conv1D, which are (in, out), are transposed.
func loadGPT2(ctx context.Context, m *gpt2, source nn.Source) (nn.LoadReport, error) {
	return nn.LoadWeights(ctx, m, source, nn.Rename(func(name string) string {
		if strings.HasSuffix(name, ".attn.bias") {
			return ""
		}
		return gpt2Names.Replace(name)
	}), nn.Transpose(func(name string) bool {
		return strings.Contains(name, ".c_") && strings.HasSuffix(name, ".weight")
	}))
}

// Published weights of GPT-2 are loaded from shards of safetensors, from files of 16 bits, and from
// PyTorch's own format, and give PyTorch's logits.
func ExampleLoadWeights() {
	const folder = "testdata/gpt2/"
	ctx := context.Background()
	env, err := tensor.Open("host")
	check(err)
	var want struct {
		Tokens [][]int32
		Logits map[string][]float64 // of PyTorch, with the weights in float32, float16 and bfloat16
	}
	text, err := os.ReadFile(folder + "expected.json")
	check(errors.Join(err, json.Unmarshal(text, &want)))

	for _, file := range []struct{ path, dtype string }{
		{"model.safetensors.index.json", "float32"}, {"float16.safetensors", "float16"}, {"bfloat16.safetensors", "bfloat16"}, {"pytorch_model.bin", "float16"},
	} {
		var source interface {
			nn.Source
			io.Closer
		}
		if strings.HasSuffix(file.path, ".bin") {
			source, err = torchfile.Open(folder + file.path)
		} else {
			source, err = safetensors.Open(folder + file.path)
		}
		check(err)
		in := nn.Init(ctx, env)
		model := newGPT2(in, 40, 12, 32, 2, 4)
		check(in.Err())
		report, err := loadGPT2(ctx, model, source)
		check(errors.Join(err, source.Close()))

		tape := autograd.NoGrad(ctx, env)
		tokens := autograd.Upload(tape, slices.Concat(want.Tokens...), len(want.Tokens), len(want.Tokens[0]))
		logits, err := tensor.ToSlice[float32](ctx, model.Forward(tape, tokens).Value(), nil)
		check(errors.Join(err, tape.Close(), in.Close()))
		furthest := 0.0
		for i, x := range want.Logits[file.dtype] {
			furthest = max(furthest, math.Abs(float64(logits[i])-x))
		}
		fmt.Printf("%s: %d tensors loaded, %d left out, logits within 1e-4: %v\n", file.path, len(report.Loaded), len(report.LeftOut), furthest < 1e-4)
		for _, w := range report.Loaded {
			if w.Name == "blocks.1.up.weight" || w.TiedTo != "" {
				fmt.Printf("  %s: %s %v, transposed: %v, tied to %q\n", w.Name, w.Dtype, w.Shape, w.Transposed, w.TiedTo)
			}
		}
	}
	check(env.Close())
	// Output:
	// model.safetensors.index.json: 28 tensors loaded, 2 left out, logits within 1e-4: true
	//   blocks.1.up.weight: F32 (32, 128), transposed: true, tied to ""
	// float16.safetensors: 28 tensors loaded, 2 left out, logits within 1e-4: true
	//   blocks.1.up.weight: F16 (32, 128), transposed: true, tied to ""
	// bfloat16.safetensors: 28 tensors loaded, 2 left out, logits within 1e-4: true
	//   blocks.1.up.weight: BF16 (32, 128), transposed: true, tied to ""
	// pytorch_model.bin: 29 tensors loaded, 2 left out, logits within 1e-4: true
	//   blocks.1.up.weight: F16 (32, 128), transposed: true, tied to ""
	//   head.weight: F16 (40, 32), transposed: false, tied to "tokens.weight"
}
