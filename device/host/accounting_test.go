package host

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/accounting"
)

// TestAccountingBelowZero: negative accounts are reported in every build, whatever the cause.
func TestAccountingBelowZero(t *testing.T) {
	for name, lower := range map[string]func(d *Device, p uintptr){
		"Free":       func(d *Device, p uintptr) { d.mem.free(p, allocated, &d.mem.used) },
		"a refund":   func(d *Device, _ uintptr) { d.mem.refund(&d.mem.pinnedBytes, 0, 1) },
		"a reserve":  func(d *Device, _ uintptr) { d.mem.refund(&d.mem.reserved, 0, 1) },
		"no account": func(d *Device, _ uintptr) { d.mem.refund(&d.mem.used, 0, 1) },
	} {
		d, err := New(Config{Capacity: 1 << 20})
		require.NoError(t, err)
		p, err := d.Alloc(64)
		require.NoError(t, err)
		d.mem.used = 0
		before := accounting.Faults()
		lower(d, uintptr(p))
		require.Equal(t, before+1, accounting.Faults(), name)
		_ = d.Close()
	}
}
