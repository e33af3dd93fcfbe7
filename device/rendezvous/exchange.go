package rendezvous

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// Exchange sends id from rank 0 to all other ranks, and returns it on each of them. The id argument
// of the other ranks is ignored.
//
// On rank 0 it returns once all ranks have the id; on the others once this rank has the id and rank
// 0 has confirmed that. If ctx ends first, the error wraps [device.ErrTimeout], and on rank 0 names
// the missing ranks. A rank whose connection breaks tries again; if it has the id already and can't
// reach rank 0 any more, it returns the id.
//
// A rank that another process has taken already, or that has another size or belongs to another
// start of the job, gets an error that wraps [device.ErrMismatch]; the others keep waiting for the
// right one. The id may have up to [MaxID] bytes.
func Exchange(ctx context.Context, cfg Config, id []byte) ([]byte, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, invalid("the context is nil; use context.Background()")
	}
	if cfg.Rank > 0 {
		return fetch(ctx, cfg)
	}
	if len(id) > MaxID {
		return nil, invalid("an id of %d bytes; the maximum is %d", len(id), MaxID)
	}
	if cfg.Size == 1 {
		return id, nil
	}
	return id, serve(ctx, cfg, id)
}

// Join creates dev's rank of a communicator of all processes. The ranks of host devices must be in
// one process, so with a host device Join works only for a Size of 1.
func Join(ctx context.Context, cfg Config, dev device.Device, opts device.CommunicatorOptions) (device.Communicator, error) {
	c, ok := dev.(device.Collectives)
	if !ok {
		return nil, fmt.Errorf("rendezvous: %w: a %T has no collectives", device.ErrUnsupported, dev)
	}
	var id device.CommunicatorID
	if cfg.Rank == 0 {
		var err error
		if id, err = c.NewCommunicatorID(); err != nil {
			return nil, err
		}
	}
	all, err := Exchange(ctx, cfg, id[:])
	if err != nil {
		return nil, err
	}
	if len(all) != len(id) {
		return nil, fmt.Errorf("rendezvous: %w: rank 0 has sent an id of %d bytes; a communicator's id has %d", device.ErrMismatch, len(all), len(id))
	}
	return c.NewCommunicator(ctx, device.CommunicatorID(all), cfg.Rank, cfg.Size, opts)
}
