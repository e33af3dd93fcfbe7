package nn_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/tensor"
)

// Generating text a token at a time: the cache keeps the keys and values of the tokens before.
func ExampleKVCache() {
	if err := generate(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 7 tokens after the prompt's: [3 1 4 1 5 1 1 1 1 1 1 1]
}

func generate(ctx context.Context) (err error) {
	rt, err := tensor.Open("host")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	in := nn.Init(ctx, rt, nn.Seed(1))
	defer func() { err = errors.Join(err, in.Close()) }()
	const words, width, heads, length = 8, 16, 2, 12
	embedding, attention, last := in.Embedding(words, width), in.MultiHeadAttention(width, heads, nn.BatchFirst()), in.Linear(width, words)
	cache, err := nn.NewKVCache(ctx, rt, nn.KVCacheConfig{Layers: 1, Batch: 1, Heads: heads, Length: length, HeadSize: width / heads})
	if err != nil {
		return errors.Join(err, in.Err())
	}
	defer func() { err = errors.Join(err, cache.Release()) }()

	text := []int32{3, 1, 4, 1, 5}
	for new := text; cache.Len() < length-1; {
		tape := autograd.NoGrad(ctx, rt)
		x := embedding.Forward(tape, autograd.Upload(tape, new, 1, len(new)))
		x = attention.ForwardCached(tape, x, cache, 0, autograd.AttentionConfig{})
		logits := last.Forward(tape, tape.Narrow(x, 1, len(new)-1, 1)).Value()
		if tape.Err() != nil {
			return tape.Close()
		}
		scores, err := tensor.ToSlice[float32](ctx, logits, nil)
		if err := errors.Join(err, tape.Close()); err != nil {
			return err
		}
		best := 0
		for i, s := range scores {
			if s > scores[best] {
				best = i
			}
		}
		new = []int32{int32(best)}
		text = append(text, new...)
	}
	fmt.Println(len(text)-5, "tokens after the prompt's:", text)
	return nil
}
