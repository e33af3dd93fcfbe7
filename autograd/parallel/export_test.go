package parallel

import (
	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// Unexported parts of the package for tests, by their files.

// parallel.go and its parts

const DefaultBucketBytes = defaultBucketBytes

// ExchangeOf returns the communicator and stream of a Parallel.
func ExchangeOf(d *Parallel) (stream *device.Stream, comm *device.Communicator) {
	return &d.stream, &d.comm
}

func SetLearned(d *Parallel)    { d.learned = true }
func PassesOf(d *Parallel) int  { return d.passes }
func ReducedOf(d *Parallel) int { return d.pass.next } // buckets, in this pass

// BucketsOf are the names of the parameters in the buckets.
func BucketsOf(d *Parallel) (all [][]string) {
	for _, b := range d.buckets {
		var names []string
		for _, r := range b.replicas {
			names = append(names, r.name)
		}
		all = append(all, names)
	}
	return all
}

// PartOf is this rank's part of a parameter that is trained by a Parallel, if it is.
func PartOf(p *autograd.Parameter) (grad *tensor.Tensor, lo, hi int, ok bool) {
	r := replicaOf(p)
	if r == nil {
		return nil, 0, 0, false
	}
	return r.part.grad, r.part.lo, r.part.hi, true
}
