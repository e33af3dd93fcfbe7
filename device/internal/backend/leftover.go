package backend

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/device"
)

// Leftover counts the memory that was still live when a device was closed.
type Leftover struct {
	Allocations, Mappings, Reservations, Pinned, Registered Held
}

// Held counts memory of one kind.
type Held struct {
	count int
	bytes int64
}

// Add counts a piece of memory.
//
//go:norace
func (h *Held) Add(bytes int64) {
	h.count++
	h.bytes += bytes
}

var errLeft = errors.New("memory was still in use")

// Left returns the error of a Close with leftover memory, or nil.
func (s Self) Left(l *Leftover) error {
	var parts []string
	for _, p := range []struct {
		Held
		what string
	}{
		{l.Allocations, "allocations (Free)"},
		{l.Mappings, "mappings (Unmap)"},
		{l.Reservations, "reservations (Unreserve)"},
		{l.Pinned, "pinned buffers (FreePinned)"},
		{l.Registered, "registered slices (Unregister)"},
	} {
		if p.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s of %s", p.count, p.what, humanize.IBytes(uint64(p.bytes))))
		}
	}
	if parts == nil {
		return nil
	}
	return &device.Error{Op: "Close", Device: string(s), Err: errLeft, Detail: strings.Join(parts, ", ")}
}
