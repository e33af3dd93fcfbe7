package memcache

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// diarist records its calls under its name; without a name it follows no operation.
type diarist struct {
	name string
	log  *[]string
}

type diaristKey struct{}

func (d diarist) Start(ctx context.Context, op Op) (context.Context, Operation) {
	before, _ := ctx.Value(diaristKey{}).(string)
	*d.log = append(*d.log, before+d.name+" start "+op.String())
	if d.name == "" {
		return ctx, nil
	}
	return context.WithValue(ctx, diaristKey{}, before+d.name+","), d
}

func (d diarist) End(info OpInfo) { *d.log = append(*d.log, d.name+" end "+info.Op.String()) }

// heard keeps its calls.
type heard struct{ infos []OpInfo }

func (h *heard) Start(ctx context.Context, _ Op) (context.Context, Operation) { return ctx, h }

func (h *heard) End(info OpInfo) { h.infos = append(h.infos, info) }

// TestRelabelIsObserved: an observer that counts by label sees a new label, and a refused one.
func TestRelabelIsObserved(t *testing.T) {
	dev := newScripted(1 << 30)
	h := &heard{}
	c, err := New(dev, Config{Observer: h})
	require.NoError(t, err)
	b, err := c.Alloc(t.Context(), 100, dev.stream(3))
	require.NoError(t, err)
	require.NoError(t, b.SetLabel(Label{Module: "head"}))
	last := h.infos[len(h.infos)-1]
	require.Equal(t, OpInfo{Op: OpRelabel, Device: dev.Name(), Cache: last.Cache, Stream: 3, Serial: b.Serial(), Bytes: 512, Label: Label{Module: "head"}}, last)
	require.NoError(t, b.Free())
	require.ErrorIs(t, b.SetLabel(Label{}), ErrFreed)
	require.ErrorIs(t, h.infos[len(h.infos)-1].Err, ErrFreed)
}

// TestObservers: all are called, started in order and ended in reverse, except those that follow no
// operation.
func TestObservers(t *testing.T) {
	var log []string
	a, b, none := diarist{"a", &log}, diarist{"b", &log}, diarist{"", &log}
	require.Nil(t, Observers())
	require.Nil(t, Observers(nil, nil))
	require.Equal(t, Observer(a), Observers(nil, a))
	ctx, run := Observers(a, nil, none, b).Start(t.Context(), OpAlloc)
	require.Equal(t, "a,b,", ctx.Value(diaristKey{}))
	run.End(OpInfo{Op: OpAlloc})
	require.Equal(t, []string{"a start alloc", "a, start alloc", "a,b start alloc", "b end alloc", "a end alloc"}, log)
	_, run = Observers(none, none).Start(t.Context(), OpFree)
	require.Nil(t, run)
	_, run = Observers(none, b).Start(t.Context(), OpFree)
	require.Equal(t, Operation(b), run)
}
