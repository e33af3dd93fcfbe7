package transfer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// diarist records its calls under its name; without a name it declines.
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

// TestObservers: all observers are called, from the first to the last and back, except those that
// decline.
func TestObservers(t *testing.T) {
	var log []string
	a, b, none := diarist{"a", &log}, diarist{"b", &log}, diarist{"", &log}
	require.Nil(t, Observers())
	require.Nil(t, Observers(nil, nil))
	require.Equal(t, Observer(a), Observers(nil, a))
	ctx, run := Observers(a, nil, none, b).Start(t.Context(), OpH2D)
	require.Equal(t, "a,b,", ctx.Value(diaristKey{}))
	run.End(OpInfo{Op: OpH2D})
	require.Equal(t, []string{"a start h2d", "a, start h2d", "a,b start h2d", "b end h2d", "a end h2d"}, log)
	_, run = Observers(none, none).Start(t.Context(), OpD2H)
	require.Nil(t, run)
	_, run = Observers(none, b).Start(t.Context(), OpD2H)
	require.Equal(t, Operation(b), run)
}
