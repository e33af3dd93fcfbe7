package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// command is one step of a soak's program. The meaning of its numbers depends on the tensors that
// exist when it runs, so that any part of a program is a program.
type command struct{ op, a, b, c uint8 }

// soakOps are the operations of commands, by weight.
var soakOps = []struct {
	name   string
	weight int
	do     func(w *soakFixture, c command) error
}{
	{"make", 12, (*soakFixture).make},
	{"compute", 40, (*soakFixture).compute},
	{"write", 12, (*soakFixture).write},
	{"view", 8, (*soakFixture).view},
	{"release", 14, func(w *soakFixture, c command) error { return w.some(c, w.release) }},
	{"read", 8, func(w *soakFixture, c command) error { return w.some(c, w.compare) }},
	{"drop", 1, (*soakFixture).drop},
	{"race", 2, (*soakFixture).race},
	{"misuse", 4, (*soakFixture).misuse},
	{"cancelled", 2, (*soakFixture).cancelled},
	{"open scope", 3, (*soakFixture).openScope},
	{"keep", 2, (*soakFixture).keep},
	{"close scope", 3, func(w *soakFixture, c command) error {
		if len(w.scopes) == 0 {
			return nil
		}
		return w.closeScope(int(c.a) % len(w.scopes))
	}},
	{"graph", 4, (*soakFixture).graph},
	{"train", 4, (*soakFixture).train},
	{"fill", 2, (*soakFixture).fill},
	{"drain", 2, func(w *soakFixture, _ command) error { return w.drain() }},
	{"empty cache", 1, func(w *soakFixture, _ command) error { return w.unexpected(w.cache.EmptyCache(w.ctx())) }},
	{"fault", 1, (*soakFixture).fault},
	{"restart", 1, (*soakFixture).restart},
}

// soakTable has every operation as often as it weighs.
var soakTable = func() (table []uint8) {
	for i, op := range soakOps {
		table = append(table, slices.Repeat([]uint8{uint8(i)}, op.weight)...)
	}
	return table
}()

func randomProgramOf(seed uint64, n int) []command {
	random := rand.New(rand.NewPCG(seed, 3))
	p := make([]command, n)
	for i := range p {
		v := random.Uint64()
		p[i] = command{soakTable[random.IntN(len(soakTable))], uint8(v), uint8(v >> 8), uint8(v >> 16)}
	}
	return p
}

// some calls f with a live tensor.
func (w *soakFixture) some(c command, f func(i int) error) error {
	if len(w.items) == 0 {
		return nil
	}
	return f(int(c.a) % len(w.items))
}

func (w *soakFixture) make(c command) error {
	s := int(c.a) % 2
	shape := [][]int{{2, 3}, {3}, {3, 2}, {2, 1, 3}, {1}, {0, 2}, {2, 2}, {}}[c.b%8]
	m := zeros(shape...)
	for i := range m.data {
		m.data[i] = float64(int(c.c)%41-20+i) / 10
	}
	var t *tensor.Tensor
	var err error
	if len(shape) == 0 {
		m.data[0] = float64(c.c) / 16
		t, err = w.sides[s].rt.Full(w.ctx(), m.data[0], tensor.DtypeOf[float64]())
	} else {
		t, err = tensor.FromSlice(w.ctx(), w.sides[s].rt, m.data, shape...)
	}
	return w.addResult(t, err, liveTensor{side: s, model: m})
}

type runtimeOp = func(rt *tensor.Runtime, ctx context.Context, p params, ts []*tensor.Tensor) (*tensor.Tensor, error)

func unaryOp(f func(rt *tensor.Runtime, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error)) runtimeOp {
	return func(rt *tensor.Runtime, ctx context.Context, _ params, ts []*tensor.Tensor) (*tensor.Tensor, error) {
		return f(rt, ctx, ts[0])
	}
}

func binaryOp(f func(rt *tensor.Runtime, ctx context.Context, a, b *tensor.Tensor) (*tensor.Tensor, error)) runtimeOp {
	return func(rt *tensor.Runtime, ctx context.Context, _ params, ts []*tensor.Tensor) (*tensor.Tensor, error) {
		return f(rt, ctx, ts[0], ts[1])
	}
}

// runtimeOps are the operations of graphs as methods of a runtime.
var runtimeOps = map[string]runtimeOp{
	"Add": binaryOp((*tensor.Runtime).Add), "Sub": binaryOp((*tensor.Runtime).Sub), "Mul": binaryOp((*tensor.Runtime).Mul), "Div": binaryOp((*tensor.Runtime).Div),
	"AddBias": binaryOp((*tensor.Runtime).AddBias), "Neg": unaryOp((*tensor.Runtime).Neg), "Exp": unaryOp((*tensor.Runtime).Exp),
	"Log": unaryOp((*tensor.Runtime).Log), "Tanh": unaryOp((*tensor.Runtime).Tanh), "Sigmoid": unaryOp((*tensor.Runtime).Sigmoid),
	"Sqrt": unaryOp((*tensor.Runtime).Sqrt), "Square": unaryOp((*tensor.Runtime).Square), "ReLU": unaryOp((*tensor.Runtime).ReLU),
	"Softmax": unaryOp(func(rt *tensor.Runtime, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.Softmax(ctx, x)
	}),
	"Transpose": unaryOp(func(rt *tensor.Runtime, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
		return rt.Transpose(ctx, x)
	}),
	"Transpose of two dimensions": func(rt *tensor.Runtime, ctx context.Context, p params, ts []*tensor.Tensor) (*tensor.Tensor, error) {
		return rt.Transpose(ctx, ts[0], p.axes...)
	},
	"MulScalar": func(rt *tensor.Runtime, ctx context.Context, p params, ts []*tensor.Tensor) (*tensor.Tensor, error) {
		return rt.MulScalar(ctx, ts[0], p.c)
	},
	"AddScalar": func(rt *tensor.Runtime, ctx context.Context, p params, ts []*tensor.Tensor) (*tensor.Tensor, error) {
		return rt.AddScalar(ctx, ts[0], p.c)
	},
	"Sum": func(rt *tensor.Runtime, ctx context.Context, p params, ts []*tensor.Tensor) (*tensor.Tensor, error) {
		return rt.Sum(ctx, ts[0], p.axes...)
	},
	"Mean": func(rt *tensor.Runtime, ctx context.Context, p params, ts []*tensor.Tensor) (*tensor.Tensor, error) {
		return rt.Mean(ctx, ts[0], p.axes...)
	},
	"MatMul": func(rt *tensor.Runtime, ctx context.Context, p params, ts []*tensor.Tensor) (*tensor.Tensor, error) {
		return rt.MatMul(ctx, ts[0], ts[1], tapetest.Transpose(p.transA, p.transB))
	},
}

// computable are the numbers in graphOps of those.
var computable = func() (ops []int) {
	for i, op := range graphOps {
		if runtimeOps[op.name] != nil {
			ops = append(ops, i)
		}
	}
	return ops
}()

// compute applies an operation to items of one runtime. If the model can't, the runtime must
// refuse.
func (w *soakFixture) compute(c command) error {
	if len(w.items) == 0 {
		return nil
	}
	first := w.items[int(c.b)%len(w.items)]
	second := w.items[int(c.c)%len(w.items)]
	if second.side != first.side {
		second = first
	}
	op := graphOps[computable[int(c.a)%len(computable)]]
	xs, ts := []array{first.model, second.model}, []*tensor.Tensor{first.t, second.t}
	var p params
	if op.options != nil {
		p = op.options(&byteChoice{[]byte{c.c, c.a, c.b, c.c / 2, c.a / 4}}, xs)
	}
	d := &domain{margin: math.Inf(1)}
	y, ok := op.naive(d, p, xs[:op.arity])
	if op.name != "ReLU" && d.margin < 0.05 {
		return nil // a quotient of rounding errors can't be compared
	}
	t, err := runtimeOps[op.name](w.sides[first.side].rt, w.ctx(), p, ts[:op.arity])
	switch {
	case ok && slices.ContainsFunc(y.data, math.IsNaN):
		return fmt.Errorf("the model of %s has a NaN", op.name)
	case !ok && op.name == "Mean": // of nothing, which is NaN for the runtime
		w.calls++
		return errors.Join(w.unexpected(err), t.Release())
	case !ok && !errors.Is(err, tensor.ErrShape):
		return fmt.Errorf("%s of %v and %v: %v, want a refusal", op.name, xs[0].shape, xs[1].shape, err)
	case !ok:
		w.calls++
		return nil
	}
	mem := &memory{unknown: first.mem.unknown || op.arity > 1 && second.mem.unknown}
	return w.addResult(t, err, liveTensor{side: first.side, model: y, mem: mem, depth: 1 + max(first.depth, second.depth)})
}

// write overwrites a live tensor in place, and with it its views, also in the model.
func (w *soakFixture) write(c command) error {
	if len(w.items) == 0 {
		return nil
	}
	it := w.items[int(c.b)%len(w.items)]
	other := w.items[int(c.c)%len(w.items)]
	rt := w.sides[it.side].rt
	before := it.t.Version()
	var y array
	var err error
	switch c.a % 4 {
	case 0:
		y, err = zeros(it.model.shape...), rt.Zero(w.ctx(), it.t)
	case 1:
		y, err = it.model.each(func(v float64) float64 { return v * 0.5 }), rt.MulScalarInPlace(w.ctx(), it.t, 0.5)
	case 2:
		y = it.model.each(func(v float64) float64 { return float64(c.c)/32 - v })
		err = tensor.CopyFrom(w.ctx(), it.t, y.data)
	default:
		sum, ok := zip(it.model, other.model, func(x, y float64) float64 { return x + y })
		if other.side != it.side || !ok || len(sum.data) != len(it.model.data) || other != it && other.mem == it.mem {
			return nil
		}
		for i := range sum.data {
			if math.Abs(sum.data[i]) > 30 {
				return nil
			}
		}
		if !slices.Equal(sum.shape, it.model.shape) {
			return nil
		}
		y, err = sum, rt.AddInPlace(w.ctx(), it.t, other.t)
		it.mem.unknown = it.mem.unknown || other.mem.unknown
		it.depth = 1 + max(it.depth, other.depth)
	}
	w.calls++
	if err != nil {
		it.mem.unknown = true
		return w.unexpected(err)
	}
	if it.t.Version() == before {
		return errors.New("a write in place left the version as it was")
	}
	copy(it.model.data, y.data)
	return nil
}

func (w *soakFixture) view(c command) error {
	return w.some(c, func(i int) error {
		it := w.items[i]
		next, rt := *it, w.sides[it.side].rt
		switch {
		case c.b%3 == 0 && len(it.model.shape) > 0:
			from := int(c.c) % (it.model.shape[0] + 1)
			to := from + int(c.c/8)%(it.model.shape[0]+1-from)
			row := len(zeros(it.model.shape[1:]...).data)
			shape := slices.Clone(it.model.shape)
			shape[0] = to - from
			next.model = array{shape, it.model.data[from*row : to*row : to*row]}
			t, err := rt.Rows(w.ctx(), it.t, from, to)
			return w.addResult(t, err, next)
		case c.b%3 == 1:
			next.model = array{[]int{len(it.model.data)}, it.model.data}
			t, err := rt.Reshape(w.ctx(), it.t, -1)
			return w.addResult(t, err, next)
		default:
			t, err := rt.Share(w.ctx(), it.t)
			return w.addResult(t, err, next)
		}
	})
}

// drop drops a handle, which the garbage collector must find.
func (w *soakFixture) drop(c command) error {
	return w.some(c, func(i int) error {
		w.items, w.dropped = slices.Delete(w.items, i, i+1), true
		return nil
	})
}

// race computes with a live tensor while another goroutine releases it: the result is right, or an
// error.
func (w *soakFixture) race(c command) error {
	return w.some(c, func(i int) error {
		it := w.items[i]
		w.items = slices.Delete(w.items, i, i+1)
		next := liveTensor{side: it.side, model: it.model.each(math.Tanh), mem: &memory{unknown: it.mem.unknown}, depth: it.depth + 1}
		var wg sync.WaitGroup
		var released error
		wg.Go(func() { released = it.t.Release() })
		t, err := w.sides[it.side].rt.Tanh(w.ctx(), it.t)
		wg.Wait()
		w.calls++
		if errors.Is(err, tensor.ErrReleased) {
			return released
		}
		return errors.Join(released, w.addResult(t, err, next))
	})
}

// misuse makes calls that must be refused, and change nothing.
func (w *soakFixture) misuse(c command) error {
	return w.some(c, func(i int) error {
		it, ctx := w.items[i], w.ctx()
		rt, other := w.sides[it.side].rt, w.sides[1-it.side].rt
		var err, want error
		switch c.b % 5 {
		case 0:
			_, err = other.Exp(ctx, it.t)
			want = tensor.ErrRuntime
		case 1:
			_, err = rt.Reshape(ctx, it.t, len(it.model.data)+1)
			want = tensor.ErrShape
		case 2:
			err = tensor.CopyFrom(ctx, it.t, make([]float32, len(it.model.data)))
			want = tensor.ErrDtype
		case 3:
			_, err = rt.Add(ctx, it.t, nil)
			want = tensor.ErrInvalid
		default:
			if err := w.release(i); err != nil {
				return err
			}
			err, want = rt.AddInPlace(ctx, it.t, it.t), tensor.ErrReleased
		}
		w.calls++
		if !errors.Is(err, want) {
			return fmt.Errorf("%v, want %v", err, want)
		}
		return nil
	})
}

// cancelled computes and reads with a context that has ended.
func (w *soakFixture) cancelled(c command) error {
	return w.some(c, func(i int) error {
		ctx, cancel := context.WithCancel(w.ctx())
		cancel()
		it := w.items[i]
		_, err := tensor.ToSlice[float64](ctx, it.t, nil)
		if err != nil && !errors.Is(err, context.Canceled) {
			return w.unexpected(err)
		}
		t, err := w.sides[it.side].rt.Tanh(ctx, it.t)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return w.addResult(t, err, liveTensor{side: it.side, model: it.model.each(math.Tanh), mem: &memory{unknown: it.mem.unknown}, depth: it.depth + 1})
	})
}

func (w *soakFixture) openScope(command) error {
	if len(w.scopes) < 4 {
		ctx, life := tensor.WithLifetime(w.ctx())
		w.scopes = append(w.scopes, &scopeModel{ctx, life})
	}
	return nil
}

// outer is the scope that a scope's tensors pass to.
func (w *soakFixture) outer(s *scopeModel) *scopeModel {
	if i := slices.Index(w.scopes, s); i > 0 {
		return w.scopes[i-1]
	}
	return nil
}

func (w *soakFixture) keep(c command) error {
	return w.some(c, func(i int) error {
		if it := w.items[i]; it.scope != nil {
			it.scope.life.Keep(it.t)
			it.scope = w.outer(it.scope)
		}
		return nil
	})
}

func (w *soakFixture) closeScope(i int) error {
	s := w.scopes[i]
	if err := s.life.Close(); err != nil {
		return err
	}
	w.calls++
	for _, it := range w.items {
		if it.t.Released() != (it.scope == s) {
			return fmt.Errorf("a scope was closed: released: %v, its own: %v", it.t.Released(), it.scope == s)
		}
	}
	w.items = slices.DeleteFunc(w.items, func(it *liveTensor) bool { return it.scope == s })
	w.scopes = slices.Delete(w.scopes, i, i+1)
	return nil
}

// graph runs a random graph on a tape, and compares it with the reference.
func (w *soakFixture) graph(c command) error {
	random := rand.New(rand.NewPCG(uint64(c.a), uint64(c.b)))
	g := newGraph(random, 1+int(c.c)%10)
	w.calls += int64(2*len(g.leaves) + 3*len(g.steps)) // forward twice, backward once
	b := &tapetest.Bench{Ctx: w.ctx(), RT: w.sides[c.a%2].rt, Shared: w.dropped}
	if err := w.unexpected(g.check(b)); err != nil {
		return fmt.Errorf("%w:\n%v", err, g)
	}
	return nil
}

func (w *soakFixture) train(c command) (err error) {
	s := w.sides[c.a%2]
	if s.trained == nil {
		s.trained, err = newTrainee(w.ctx(), s.rt, int(c.b))
		if err != nil {
			s.trained = nil
			return w.unexpected(err)
		}
	}
	w.calls += 12
	if err := s.trained.step(w.ctx(), s.rt, float64(c.c)/256); err != nil {
		return w.unexpected(err)
	}
	if c.b < 32 || w.broken {
		return nil
	}
	return w.unexpected(s.trained.check())
}

// fill takes the memory that is left, except a few blocks.
func (w *soakFixture) fill(c command) error {
	w.filled = true
	for size := int64(1 << 20); size >= 512; size /= 2 {
		for {
			b, err := w.cache.Alloc(context.Background(), size, w.sides[0].stream)
			if err != nil {
				if err := w.unexpected(err); err != nil {
					return err
				}
				break
			}
			w.filler = append(w.filler, b)
		}
	}
	for range min(int(c.a)%12, len(w.filler)) {
		last := len(w.filler) - 1
		if err := w.filler[last].Free(); err != nil {
			return err
		}
		w.filler = w.filler[:last]
	}
	return nil
}

func (w *soakFixture) drain() error {
	var errs []error
	for _, b := range w.filler {
		errs = append(errs, b.Free())
	}
	w.filler = nil
	return errors.Join(errs...)
}

// fault sets a fault. After a failed launch or copy the device is unusable, and later calls must
// fail cleanly.
func (w *soakFixture) fault(c command) error {
	f := []host.Fault{host.FaultAlloc, host.FaultPinned, host.FaultAlloc, host.FaultPinned, host.FaultCopy, host.FaultLaunch}[c.a%6]
	if f == host.FaultCopy || f == host.FaultLaunch {
		if c.b%4 != 0 {
			return nil
		}
		w.broken = true
		for _, it := range w.items {
			it.mem.unknown = true
		}
	}
	w.faulty = true
	w.dev.Fail(f, 1+int(c.c)%8)
	return nil
}

// restart closes a runtime, or the stream below it, and opens another.
func (w *soakFixture) restart(c command) error {
	if w.broken {
		return nil // there would be no other
	}
	i := int(c.a) % 2
	if s := w.sides[i]; s.trained != nil {
		if err := s.trained.close(); err != nil {
			return err
		}
		s.trained = nil
	}
	if err := w.closeSide(i, c.b%2 == 0); err != nil {
		return err
	}
	return w.unexpected(w.openSide(i))
}

// text returns the program as an argument of -soak.replay, and in words.
func text(p []command) string {
	var hex, words strings.Builder
	for _, c := range p {
		fmt.Fprintf(&hex, "%02x%02x%02x%02x", c.op, c.a, c.b, c.c)
		fmt.Fprintf(&words, "  %s %d %d %d\n", soakOps[int(c.op)%len(soakOps)].name, c.a, c.b, c.c)
	}
	return fmt.Sprintf("%s\n%s", hex.String(), words.String())
}
