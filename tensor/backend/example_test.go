package backend_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/backend"
)

// counter is a backend that runs its calls on another backend and counts them by name.
type counter struct {
	backend.Backend
	calls map[string]int
}

func (c *counter) Do(ctx context.Context, call *backend.Call) error {
	c.calls[call.Op.Name()]++
	return c.Backend.Do(ctx, call)
}

// Example registers a backend that counts the operations of the host's.
func Example() {
	counts := &counter{calls: map[string]int{}}
	backend.Register("counting", func(env backend.Env) (_ backend.Backend, err error) {
		counts.Backend, err = backend.For(env, "host")
		return counts, err
	})
	ctx := context.Background()
	env, err := tensor.Open("host", tensor.Backend("counting"))
	if err != nil {
		fmt.Println(err)
		return
	}
	x, err := tensor.FromSlice(ctx, env, []float32{1, 2}, 2)
	y, err2 := env.Add(ctx, x, x)
	fmt.Println(counts.calls["add"], errors.Join(err, err2, x.Release(), y.Release(), env.Close()))
	// Output: 1 <nil>
}
