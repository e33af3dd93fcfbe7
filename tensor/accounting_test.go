package tensor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/accounting"
)

// Counts that fall below zero are reported in every build.
func TestAccountingBelowZero(t *testing.T) {
	r := newRig(t, 64<<20)
	x, err := r.New(r.ctx, Float32, 4)
	require.NoError(t, err)
	for name, lower := range map[string]func(){
		"references": func() {
			var s storage
			_, _ = s.letGo(context.Background())
		},
		"live tensors": func() {
			h := &handle{young: x, bytes: 1}
			l := handles{first: h, oldest: h, young: 1}
			l.remove(h)
		},
		"offloaded bytes": func() { new(Offloader).count(func(s *OffloadStats) { back(s, 1) }) },
	} {
		before := accounting.Faults()
		lower()
		require.Greater(t, accounting.Faults(), before, name)
	}
	require.NoError(t, x.Release())
}
