// GPT trains a small transformer on the bytes of a text, by default Go's specification, and then
// continues the text.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"go/build"
	"html"
	"io"
	"log"
	"math"
	"os"
	"regexp"
	"time"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	_ "github.com/cistern-ml/cistern/device/cuda"
	"github.com/cistern-ml/cistern/tensor"
)

const width, heads, layers, length, batch = 128, 4, 4, 128, 16

// block is attention and a dense part, each after a norm and added to its input.
type block struct {
	Norm1, Norm2 *nn.LayerNorm
	Attention    *nn.MultiHeadAttention
	Up, Down     *nn.Linear
}

// gpt computes logits of the next byte at each position.
type gpt struct {
	Bytes, Places *autograd.Parameter
	Blocks        []*block
	Norm          *nn.LayerNorm
	Head          *nn.Linear
}

func newGPT(in *nn.Initializer) *gpt {
	g := &gpt{in.Normal(0, 0.02, 256, width), in.Normal(0, 0.02, length, width), nil, in.LayerNorm(width), in.Linear(width, 256)}
	for range layers {
		g.Blocks = append(g.Blocks, &block{
			in.LayerNorm(width), in.LayerNorm(width), in.MultiHeadAttention(width, heads, nn.BatchFirst(), nn.Causal()),
			in.Linear(width, 4*width), in.Linear(4*width, width),
		})
	}
	return g
}

// forward takes bytes (batch, n). With a cache, they follow the bytes that the cache holds.
func (g *gpt) forward(t *autograd.Tape, x *autograd.Variable, cache *nn.KVCache) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := t.Add(t.Embedding(x, t.Param(g.Bytes), tensor.EmbeddingConfig{}), t.Narrow(t.Param(g.Places), 0, cache.Len(), x.Shape()[1]))
		for i, b := range g.Blocks {
			y := b.Norm1.Forward(t, h)
			if cache != nil {
				h = t.Add(h, b.Attention.ForwardCached(t, y, cache, i, autograd.AttentionConfig{}))
			} else {
				h = t.Add(h, b.Attention.Forward(t, y))
			}
			h = t.Add(h, b.Down.Forward(t, t.GELU(b.Up.Forward(t, b.Norm2.Forward(t, h)))))
		}
		return g.Head.Forward(t, g.Norm.Forward(t, h))
	})
}

// upload copies n bytes from each of these positions of a text to the tape, (positions, n).
func upload(t *autograd.Tape, text []byte, n int, at ...int) *autograd.Variable {
	var all []int32
	for _, i := range at {
		for _, b := range text[i : i+n] {
			all = append(all, int32(b))
		}
	}
	return autograd.Upload(t, all, len(at), n)
}

// loss returns the mean loss of the windows that begin at these positions, in nats per byte.
func (g *gpt) loss(t *autograd.Tape, text []byte, at ...int) *autograd.Variable {
	logits := g.forward(t, upload(t, text, length, at...), nil)
	return t.CrossEntropy(t.Reshape(logits, -1, 256), t.Reshape(upload(t, text[1:], length, at...), -1))
}

// write continues a text of a few bytes up to the model's length.
func (g *gpt) write(in *nn.Initializer, text []byte) ([]byte, error) {
	size := nn.KVCacheConfig{Layers: layers, Batch: 1, Heads: heads, Length: length, HeadSize: width / heads}
	cache, err := nn.NewKVCache(in.Context(), in.Runtime(), size)
	tape := autograd.NoGrad(in.Context(), in.Runtime())
	for n := len(text); err == nil && len(text) < length; n = 1 {
		logits := g.forward(tape, upload(tape, text, n, len(text)-n), cache)
		next := tape.Categorical(tape.Reshape(tape.Narrow(logits, 1, n-1, 1), 1, 256), tensor.Temperature(0.8), tensor.TopK(40)).Item()
		text, err = append(text, byte(next)), errors.Join(tape.Err(), tape.Reset(in.Context()))
	}
	return text, errors.Join(err, tape.Close(), cache.Release())
}

// run trains on nine tenths of a text, and returns the loss on the last tenth.
func run(ctx context.Context, device string, text []byte, steps int, limit time.Duration, out io.Writer) (nats float64, err error) {
	if len(text) < 20*length {
		return 0, fmt.Errorf("the text has %d bytes: want at least %d", len(text), 20*length)
	}
	rt, err := tensor.Open(device)
	in := nn.Init(ctx, rt, nn.Seed(1))
	defer func() { err = errors.Join(err, in.Close(), rt.Close()) }()
	g, train, test := newGPT(in), text[:len(text)*9/10], text[len(text)*9/10:]
	loop := optim.Loop{Optimizer: nn.Own(in, optim.NewAdamW(nn.ParametersOf(g), optim.AdamConfig{})), ClipNorm: 1}
	start, done := time.Now(), 0.0
	for step, tape := range in.Steps(steps) {
		done = min(1, float64(time.Since(start))/float64(limit))
		tape.Fail(loop.Optimizer.SetLR(3e-3 * min(1, float64(step+1)/50) * (1 - 0.95*done)))
		at := make([]int, batch)
		for i := range at {
			at[i] = in.Rand().IntN(len(train) - length)
		}
		loss := g.loss(tape, train, at...)
		loop.Minimize(tape, loss)
		if step%100 == 0 {
			fmt.Fprintf(out, "step %d, %v: %.3f nats a byte\n", step, time.Since(start).Round(time.Second), loss.Item())
		}
		if done == 1 {
			break
		}
	}
	tape, n := autograd.NoGrad(ctx, rt), 0.0
	for i := 0; i+length < len(test) && in.Err() == nil; i += length {
		nats, n = nats+g.loss(tape, test, i).Item(), n+1
		in.Fail(tape.Reset(ctx))
	}
	more, err := g.write(in, []byte("The "))
	fmt.Fprintf(out, "held out: %.3f nats a byte\n%s\n", nats/n, more)
	return nats / n, errors.Join(err, tape.Close())
}

func main() {
	device := flag.String("device", "host", "`name` of the device")
	path := flag.String("text", build.Default.GOROOT+"/doc/go_spec.html", "text `file` to train on")
	limit := flag.Duration("for", 2*time.Minute, "time to train")
	flag.Parse()
	text, err := os.ReadFile(*path)
	if err == nil {
		plain := html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(string(text), ""))
		_, err = run(context.Background(), *device, []byte(plain), math.MaxInt, *limit, os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}
