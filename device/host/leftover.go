package host

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/device"
)

// leftover is what a device still had when it was closed.
type leftover struct {
	allocations, mappings, reservations, pinned, registered held
}

// held counts memory of one kind.
type held struct {
	count int
	bytes int64
}

//go:norace
func (h *held) add(bytes int) {
	h.count++
	h.bytes += int64(bytes)
}

var errLeft = errors.New("memory was still in use")

func (l leftover) error() error {
	var parts []string
	for _, p := range []struct {
		held
		what string
	}{
		{l.allocations, "allocations (Free)"},
		{l.mappings, "mappings (Unmap)"},
		{l.reservations, "reservations (Unreserve)"},
		{l.pinned, "pinned buffers (FreePinned)"},
		{l.registered, "registered slices (Unregister)"},
	} {
		if p.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s of %s", p.count, p.what, humanize.IBytes(uint64(p.bytes))))
		}
	}
	if parts == nil {
		return nil
	}
	return &device.Error{Op: "Close", Device: "host", Err: errLeft, Detail: strings.Join(parts, ", ")}
}
