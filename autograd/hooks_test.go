package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// testHook records events, and fails at the event fails.
type testHook struct {
	names  map[*autograd.Variable]string
	events []string
	fails  string
}

func (h *testHook) hear(format string, args ...any) error {
	event := fmt.Sprintf(format, args...)
	h.events = append(h.events, event)
	if h.fails != "" && strings.HasPrefix(event, h.fails) {
		return fmt.Errorf("on purpose at %s", event)
	}
	return nil
}

func (h *testHook) list(vs []*autograd.Variable) string {
	var names []string
	for _, v := range vs {
		names = append(names, h.names[v])
	}
	return strings.Join(names, " ")
}

func (h *testHook) Read(_ *autograd.Tape, op string, vs []*autograd.Variable) error {
	return h.hear("read %s %s", op, h.list(vs))
}

func (h *testHook) Saved(_ *autograd.Tape, n *autograd.Node) {
	_ = h.hear("saved %s %s", n.Name(), h.list(slices.Collect(n.Saved())))
}

func (h *testHook) LetGo(_ *autograd.Tape, x *tensor.Tensor, _ tensor.Memory) {
	_ = h.hear("let go %v", x != nil)
}
func (h *testHook) Begin(*autograd.Tape) error { return h.hear("begin") }
func (h *testHook) Load(_ *autograd.Tape, n *autograd.Node, i int) error {
	return h.hear("load %s, %d behind", n.Name(), i)
}
func (h *testHook) Final(_ *autograd.Tape, v *autograd.Variable) error {
	return h.hear("final %s", h.names[v])
}
func (h *testHook) End(_ *autograd.Tape, err error) error { return h.hear("end %v", err) }
func (h *testHook) Leave(*autograd.Tape) error            { return h.hear("leave") }

// TestHooksHear tests the order of all events of a step. A checkpoint multiplies by a parameter
// twice. The parameter is final after the backward step of the second product, when the checkpoint
// has run again.
func TestHooksHear(t *testing.T) {
	b := tapetest.Open(t, 8<<20)
	w, bias := b.Parameter(2), b.Parameter(2)
	x := tapetest.Upload(b, []float64{3, 4})
	tape := autograd.NewTape(b.Ctx, b.RT)
	h := &testHook{names: map[*autograd.Variable]string{}}
	in := tape.Leaf(x)
	h.names[in], h.names[tape.Param(w)], h.names[tape.Param(bias)] = "x", "w", "bias"
	tape.Hook(h)
	tape.Hook(h) // once
	y := remat.Checkpoint(tape, func() *autograd.Variable { return tape.Mul(tape.Mul(in, tape.Param(w)), tape.Param(w)) })
	h.names[y] = "y"
	z := tape.Add(y, tape.Param(bias))
	h.names[z] = "z"
	loss := tape.Sum(z)
	h.names[loss] = "loss"
	_, err := tape.Backward(loss)
	require.NoError(t, err)
	require.NoError(t, tape.Close())
	notes := slices.DeleteFunc(h.events, func(e string) bool { return strings.HasPrefix(e, "let go") })
	require.Equal(t, strings.Split(strings.TrimSpace(`
read Mul x w
saved Mul w x
read Mul  w
saved Mul w 
saved Checkpoint x w
read Add y bias
saved Add 
read Sum z
saved Sum 
read Backward loss
begin
load Sum, 2 behind
load Add, 1 behind
final bias
load Checkpoint, 0 behind
read Mul x w
saved Mul w x
read Mul  w
saved Mul w 
load Mul, 1 behind
load Mul, 0 behind
final w
leave
end <nil>
leave`), "\n"), notes)
	require.Equal(t, []float64{6, 16}, tapetest.Read[float64](b, w.Grad()), "2xw")
	require.NoError(t, errors.Join(w.Release(), bias.Release(), x.Release()))
}

// TestHooksFail: an error of any event sticks to the tape, and nothing leaks. All hooks get
// Backward's error in End.
func TestHooksFail(t *testing.T) {
	b := tapetest.Open(t, 8<<20)
	for _, at := range []string{"read Mul", "begin", "load Mul", "final", "end <nil>", "leave"} {
		w, x := b.Parameter(2), tapetest.Upload(b, []float64{3, 4})
		tape := autograd.NewTape(b.Ctx, b.RT)
		h, other := &testHook{fails: at}, &testHook{}
		tape.Hook(h)
		tape.Hook(other)
		_, err := tape.Backward(tape.Sum(tape.Mul(tape.Input(x), tape.Param(w))))
		require.ErrorContains(t, err, "on purpose at "+at)
		last := other.events[len(other.events)-1]
		require.Contains(t, last, "on purpose at "+at, "the other hook hears that Backward has failed")
		require.True(t, strings.HasPrefix(last, "end "))
		require.Nil(t, w.Grad())
		require.ErrorContains(t, tape.Reset(b.Ctx), "on purpose")
		tape.Sum(tape.Input(x))
		require.Equal(t, "leave", other.events[len(other.events)-1], "the next step has no hooks")
		require.NoError(t, tape.Close())
		require.NoError(t, errors.Join(w.Release(), x.Release()))
	}
}

// TestHookRefuses: nil and values that can't be compared are refused, and Unhook removes a hook.
func TestHookRefuses(t *testing.T) {
	b := tapetest.Open(t, 8<<20)
	type list struct {
		autograd.NoHooks
		_ []int
	}
	for text, h := range map[string]autograd.Hooks{"nil": nil, "nil ": (*testHook)(nil), "which Go can't compare": list{}} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		tape.Unhook(h)
		tape.Hook(h)
		require.ErrorIs(t, tape.Err(), autograd.ErrInvalid)
		require.ErrorContains(t, tape.Close(), strings.TrimSpace(text))
	}
	h, other := &testHook{}, &testHook{}
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.Hook(h)
	tape.Hook(other)
	tape.Unhook(h)
	found, ok := autograd.Hooked[*testHook](tape)
	require.True(t, ok)
	require.Same(t, other, found)
	_, ok = autograd.Hooked[*early](tape)
	require.False(t, ok)
	require.NoError(t, tape.Close())
	require.Empty(t, h.events)
	require.Equal(t, []string{"leave"}, other.events)
}

// TestHooksMakeNoObjects: a hook that handles all events adds no objects.
func TestHooksMakeNoObjects(t *testing.T) {
	skipWhereChecksMakeObjects(t)
	b := tapetest.OpenIdle(t)
	hooks := [3]*silent{{n: 1}, {n: 2}, {n: 3}}
	m := garbageModel{"GPT", garbageGPT(16), []int{2, 8}, 11, 6}
	require.Zero(t, garbageWith(b, m, true, 0, func(t *autograd.Tape) {
		for _, h := range hooks {
			t.Hook(h)
		}
	}))
	require.Positive(t, hooks[2].heard)
}

// silent is a recorder that counts.
type silent struct {
	autograd.NoHooks
	n, heard int
}

func (s *silent) Read(*autograd.Tape, string, []*autograd.Variable) error     { s.heard++; return nil }
func (s *silent) Bring(*autograd.Tape, *tensor.Tensor)                        {}
func (s *silent) Made(*autograd.Tape, string, *autograd.Variable, bool) error { s.heard++; return nil }
func (s *silent) Needed(*autograd.Variable)                                   {}
func (s *silent) Unread(*autograd.Tape) (tensor.Dtype, tensor.Shape, bool)    { return 0, nil, false }
func (s *silent) Load(*autograd.Tape, *autograd.Node, int) error              { s.heard++; return nil }

// testAttachment records calls.
type testAttachment struct {
	refuses any
	joined  []*autograd.Variable
	zeroed  int
	opened  []string
}

func (a *testAttachment) Join(_ *autograd.Tape, v *autograd.Variable) error {
	a.joined = append(a.joined, v)
	return nil
}

func (a *testAttachment) Refuses(other autograd.Attachment) error {
	if other == a.refuses {
		return fmt.Errorf("%w: refused on purpose", autograd.ErrInvalid)
	}
	return nil
}

func (a *testAttachment) ZeroGrad(context.Context) error { a.zeroed++; return nil }
func (a *testAttachment) Open(*autograd.Tape, *autograd.Parameter) error {
	a.opened = append(a.opened, "open")
	return nil
}
func (a *testAttachment) Shut(*autograd.Tape, *autograd.Parameter) error {
	a.opened = append(a.opened, "shut")
	return nil
}

// TestAttachments: either of two may refuse the other. An attachment joins a tape that has read the
// parameter before. A detached one is not called.
func TestAttachments(t *testing.T) {
	b := tapetest.Open(t, 8<<20)
	first, second := &testAttachment{}, &testAttachment{}
	for _, pair := range [][2]*testAttachment{{first, second}, {second, first}} {
		p := b.Parameter(2)
		pair[0].refuses = pair[1]
		require.NoError(t, p.Attach(first))
		require.ErrorContains(t, p.CanAttach(second), "refused on purpose")
		require.ErrorContains(t, p.Attach(second), "refused on purpose")
		pair[0].refuses = nil
		require.NoError(t, p.CanAttach(second))
		require.NoError(t, p.Release())
	}
	require.ErrorIs(t, (*autograd.Parameter)(nil).Attach(first), autograd.ErrInvalid)

	p, err := autograd.NewParameter(tapetest.Upload(b, []float32{1, 2}))
	require.NoError(t, err)
	*first, *second = testAttachment{}, testAttachment{}
	tape := autograd.NewTape(b.Ctx, b.RT)
	v := tape.Param(p)
	require.NoError(t, errors.Join(p.Attach(first), p.Attach(first), p.Attach(second)))
	p.Detach(second)
	_, err = tape.Backward(tape.Sum(v))
	require.NoError(t, err)
	require.Equal(t, []*autograd.Variable{v, v}, first.joined, "the operation and Backward")
	require.Empty(t, first.opened)
	require.NoError(t, tape.Reset(b.Ctx))
	tape.SetComputeDtype(tensor.BFloat16)
	tape.Param(p)
	require.Equal(t, []string{"open", "shut"}, first.opened)
	require.NoError(t, errors.Join(p.ZeroGrad(b.Ctx), tape.Close()))
	require.Equal(t, 1, first.zeroed)
	got, ok := autograd.Attached[autograd.Opener](p)
	require.True(t, ok)
	require.Same(t, first, got)
	p.Detach(first)
	_, ok = autograd.Attached[autograd.Opener](p)
	require.False(t, ok)
	assert.Equal(t, &testAttachment{}, second)
	require.NoError(t, p.Release())
}

// TestFinalComesBeforeTheInputsGradient: the weights of a dense layer are final before its input
// has a gradient, and the bias after the weights.
func TestFinalComesBeforeTheInputsGradient(t *testing.T) {
	b := tapetest.Open(t, 8<<20)
	w, bias, x := b.Parameter(2, 2), b.Parameter(2), tapetest.Upload(b, []float64{3, 4}, 1, 2)
	tape := autograd.NewTape(b.Ctx, b.RT)
	in := tape.Leaf(x)
	h := &early{of: in}
	tape.Hook(h)
	_, err := tape.Backward(tape.Sum(tape.Linear(in, tape.Param(w), tape.Param(bias))))
	require.NoError(t, err)
	require.Equal(t, []*autograd.Parameter{w, bias}, h.final)
	require.NoError(t, errors.Join(tape.Close(), w.Release(), bias.Release(), x.Release()))
}

// early records parameters that are final before a variable has a gradient.
type early struct {
	autograd.NoHooks
	of    *autograd.Variable
	final []*autograd.Parameter
}

func (h *early) Final(_ *autograd.Tape, v *autograd.Variable) error {
	if h.of.Grad() == nil {
		h.final = append(h.final, v.Parameter())
	}
	return nil
}
