package parallel

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/internal/headstart"
	"github.com/cistern-ml/cistern/tensor"
)

// bucket is a group of gradients that are reduced together when all of them are final.
type bucket struct {
	replicas []*replica
	left     int // number of replicas not ready in this pass
}

// cut divides the replicas into buckets, in the order of their gradients.
func (d *Parallel) cut(order []int) {
	d.buckets = nil
	limit, bytes := d.cfg.FirstBucketBytes, int64(0)
	for k, i := range order {
		r := d.replicas[i]
		if k == 0 || bytes >= limit {
			if k > 0 {
				limit = d.cfg.BucketBytes
			}
			d.buckets, bytes = append(d.buckets, bucket{}), 0
		}
		r.bucket = len(d.buckets) - 1
		b := &d.buckets[r.bucket]
		b.replicas = append(b.replicas, r)
		bytes += r.Value().Bytes()
	}
}

// learn divides the replicas again, in rank 0's order of gradients in the first reduced pass.
// Replicas without a gradient come last. The first call waits for the device.
func (d *Parallel) learn(ctx context.Context) error {
	if d.learned {
		return nil
	}
	order := make([]int64, 0, len(d.replicas))
	for _, i := range d.pass.order {
		order = append(order, int64(i))
	}
	for i := range d.replicas {
		if !slices.Contains(d.pass.order, i) {
			order = append(order, int64(i))
		}
	}
	all, err := d.Gather(tensor.Detached(ctx), order)
	if err != nil {
		return d.failed("exchanging the order of the gradients", err)
	}
	rank0 := make([]int, len(order))
	for k, i := range all[0] {
		rank0[k] = int(i)
	}
	d.cut(rank0)
	d.learned = true
	return nil
}

// launch queues the reduction of the next bucket. After the last bucket's gradients it also queues
// the counts of ranks that have gradients, and the broadcast of rank 0's buffers.
func (d *Parallel) launch(ctx context.Context) error {
	k := d.pass.next
	b := &d.buckets[k]
	d.pass.next++
	last := d.pass.next == len(d.buckets)
	err := d.makeShards(ctx, b)
	if err == nil {
		err = d.fork()
	}
	if err == nil && !last { // the backward pass needs the whole GPU; the exchange has time
		err = headstart.GoFirst(d.rt, d.stream)
	}
	if err == nil {
		err = d.grouped(func() error {
			for _, r := range b.replicas {
				if err := r.reduce(); err != nil {
					return err
				}
			}
			if last {
				return d.pass.end(d)
			}
			return nil
		})
	}
	d.holdSharded(b)
	if err != nil {
		return d.failed(fmt.Sprintf("reducing bucket %d of %d, %q to %q", k+1, len(d.buckets), b.replicas[0].name, b.replicas[len(b.replicas)-1].name), err)
	}
	return nil
}
