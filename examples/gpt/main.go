// GPT trains a small transformer on the bytes of a text, the specification of Go, and writes more.
//
//	go run ./examples/gpt
//	go run ./examples/gpt -text FILE -for 5m
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
	"path/filepath"
	"regexp"
	"time"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	_ "github.com/cistern-ml/cistern/device/cuda"
	"github.com/cistern-ml/cistern/tensor"
)

const (
	width, heads, layers = 128, 4, 4
	length, batch        = 128, 16
)

// block is attention and a dense part, each after a norm and added to its input.
type block struct {
	Norm1     *nn.LayerNorm
	Attention *nn.MultiHeadAttention
	Norm2     *nn.LayerNorm
	Up, Down  *nn.Linear
}

func (b *block) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		x := t.Add(x, b.Attention.Forward(t, b.Norm1.Forward(t, x)))
		return t.Add(x, b.Down.Forward(t, t.GELU(b.Up.Forward(t, b.Norm2.Forward(t, x)))))
	})
}

// gpt gives logits of the next byte at each place.
type gpt struct {
	Bytes, Places *nn.Embedding
	Blocks        nn.Sequential
	Norm          *nn.LayerNorm
	Head          *nn.Linear
}

func newGPT(in *nn.Initializer) *gpt {
	g := &gpt{Bytes: in.Embedding(256, width), Places: in.Embedding(length, width)}
	for range layers {
		g.Blocks = append(g.Blocks, nn.LayerOf(&block{
			in.LayerNorm(width), in.MultiHeadAttention(width, heads, nn.BatchFirst(), nn.Causal()),
			in.LayerNorm(width), in.Linear(width, 4*width), in.Linear(4*width, width),
		}))
	}
	for _, e := range []*nn.Embedding{g.Bytes, g.Places} {
		in.Reset(e.Weight, nn.InitNormal(0, 0.02))
	}
	g.Norm, g.Head = in.LayerNorm(width), in.Linear(width, 256)
	return g
}

// Forward is for bytes (batch, length).
func (g *gpt) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		places := make([]int32, x.Shape()[1])
		for i := range places {
			places[i] = int32(i)
		}
		h := t.Add(g.Bytes.Forward(t, x), g.Places.Forward(t, autograd.Upload(t, places)))
		return g.Head.Forward(t, g.Norm.Forward(t, g.Blocks.Forward(t, h)))
	})
}

// loss is the mean of the windows that begin at these places, in nats a byte.
func (g *gpt) loss(t *autograd.Tape, text []byte, at []int) *autograd.Variable {
	var x, y []int32
	for _, i := range at {
		for j := range length {
			x, y = append(x, int32(text[i+j])), append(y, int32(text[i+j+1]))
		}
	}
	logits := g.Forward(t, autograd.Upload(t, x, len(at), length))
	return t.CrossEntropy(t.Reshape(logits, -1, 256), autograd.Upload(t, y))
}

// heldOut is the loss of the text in windows beside each other.
func (g *gpt) heldOut(ctx context.Context, rt *tensor.Runtime, text []byte) (nats float64, err error) {
	tape := autograd.NoGrad(ctx, rt)
	var n float64
	for i := 0; i+length < len(text); i += length {
		nats += g.loss(tape, text, []int{i}).Item()
		n++
		err = errors.Join(err, tape.Reset(ctx))
	}
	return nats / n, errors.Join(err, tape.Close())
}

func run(ctx context.Context, device string, text []byte, steps int, limit time.Duration, out io.Writer) (nats float64, err error) {
	rt, err := tensor.Open(device)
	in := nn.Init(ctx, rt, nn.Seed(1))
	defer func() { err = errors.Join(err, in.Close(), rt.Close()) }()
	g := newGPT(in)
	adam := nn.Own(in, optim.NewAdamW(nn.ParametersOf(g), optim.AdamConfig{}))
	train, test := text[:len(text)*9/10], text[len(text)*9/10:]
	start := time.Now()
	for step, tape := range in.Steps(steps) {
		done := min(1, float64(time.Since(start))/float64(limit))
		adam.SetLR(3e-3 * min(1, float64(step+1)/50) * (1 - 0.95*done))
		var at []int
		for range batch {
			at = append(at, in.Rand().IntN(len(train)-length))
		}
		loss := g.loss(tape, train, at)
		optim.Minimize(tape, loss, adam)
		if step%50 == 0 {
			fmt.Fprintf(out, "step %4d, %v: %.3f nats a byte\n", step, time.Since(start).Round(time.Second), loss.Item())
		}
		if done == 1 {
			break
		}
	}
	if err := in.Err(); err != nil {
		return 0, err
	}
	nats, err = g.heldOut(ctx, rt, test)
	fmt.Fprintf(out, "held out: %.3f nats a byte\n", nats)
	return nats, err
}

func main() {
	device := flag.String("device", "host", "`name` of the device")
	path := flag.String("text", filepath.Join(build.Default.GOROOT, "doc", "go_spec.html"), "`file` to learn from")
	limit := flag.Duration("for", 2*time.Minute, "time to train")
	flag.Parse()
	text, err := os.ReadFile(*path)
	if err != nil {
		log.Fatal(err)
	}
	text = []byte(html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(string(text), "")))
	if _, err := run(context.Background(), *device, text, math.MaxInt, *limit, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
