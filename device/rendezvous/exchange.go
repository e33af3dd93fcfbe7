package rendezvous

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// Exchange hands id from rank 0 to all others, and returns it on each. Other ranks' id is not looked at.
// It returns once this rank has the id and rank 0 knows that, and on rank 0 once all have it. When ctx
// ends first, the error wraps [device.ErrTimeout], and on rank 0 names the ranks that are missing. A rank
// whose connection breaks comes again; one that has the id returns it when it can't reach rank 0 any more.
//
// A rank that is there twice, of another size or of another start of the job gets an error that wraps
// [device.ErrMismatch]; the others wait on for the right one. The id may have up to [MaxID] bytes.
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
		return nil, invalid("an id of %d bytes; there may be %d", len(id), MaxID)
	}
	if cfg.Size == 1 {
		return id, nil
	}
	return id, serve(ctx, cfg, id)
}

// Join makes dev this process's rank of a communicator of all. The host device's ranks are goroutines of one process, so there it works for a Size of 1 alone.
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
		return nil, fmt.Errorf("rendezvous: %w: rank 0 has handed out an id of %d bytes; communicators' have %d", device.ErrMismatch, len(all), len(id))
	}
	return c.NewCommunicator(ctx, device.CommunicatorID(all), cfg.Rank, cfg.Size, opts)
}
