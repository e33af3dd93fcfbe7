package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/tensor"
)

// Checkpoint lists the parts of a training that one file holds: the model, the optimiser's state,
// the schedule's position, the random state, and the program's own state, such as its number of
// steps and its position in the data:
//
//	var at struct{ Step int; Data loader.Position }
//	c := checkpoint.Checkpoint{
//		Model: model, Optimizer: adam, Scheduler: scheduler, Init: in, State: &at,
//	}
//	err := c.Load(ctx, path) // os.ErrNotExist: a new training
//	…
//	err = c.Save(ctx, path)
//
// Parts that are nil are neither saved nor loaded. A loaded training continues bit for bit as if it
// had never stopped, if the device's kernels give the same results in every run, as those of this
// module do. The file is in the safetensors format, so that it is streamed and checked, and other
// programs can read it. The model's tensors have the prefix "model." in their names.
type Checkpoint struct {
	Model     any // as for nn.StateDict
	Optimizer optim.Optimizer
	Scheduler Scheduler
	// Init is saved as its random state, which also seeds the tapes of its Steps.
	Init *nn.Initializer
	// State is the program's own state. Load needs a non-nil pointer. It is saved as JSON, in a
	// header of at most 100 MB.
	State any

	// Ranks is the parallel.Parallel that trains the model. All ranks must call Save; only rank 0
	// writes the file, within the communicator's timeout. All ranks must call Load of that file.
	// Both return on all ranks together. The file has each rank's random state. A training can
	// continue with any number of ranks and any sharding. During Save sharded state is whole on
	// rank 0, one tensor at a time.
	Ranks Ranks
}

// Scheduler is an [optim.Scheduler] or an [optim.ReduceLROnPlateau].
type Scheduler interface {
	// Record returns the data for the file.
	Record() optim.SchedulerRecord
	// CheckRecord returns an error that wraps [autograd.ErrInvalid] if the record does not fit the
	// scheduler.
	CheckRecord(r optim.SchedulerRecord) error
	// Restore sets the state to a record that CheckRecord accepts.
	Restore(r optim.SchedulerRecord)
}

// The keys of a checkpoint's metadata, and the value of formatKey.
const (
	formatKey        = "format"
	optimizerKey     = "optimizer"
	schedulerKey     = "scheduler"
	randomKey        = "random"
	stateKey         = "state"
	checkpointFormat = "cistern checkpoint 1"
)

// Save writes the file. An older file stays until the new one is complete and on the disk, so that
// a program that is killed during Save finds the old one; see [safetensors.WriteFile]. Save waits
// for the device.
func (c Checkpoint) Save(ctx context.Context, path string) error {
	if err := check.Context("checkpoint: Save", ctx); err != nil {
		return err
	}
	save := c.save
	if !check.Nil(c.Ranks) {
		save = c.saveRanks
	}
	if err := save(ctx, path); err != nil {
		return fmt.Errorf("checkpoint: Save: %w", err)
	}
	return nil
}

func (c Checkpoint) save(ctx context.Context, path string) error {
	return c.write(ctx, path, nil, nil)
}

// write writes the file. whole has the whole tensors to write instead of this rank's parts, and
// more is additional metadata.
func (c Checkpoint) write(ctx context.Context, path string, whole map[*tensor.Tensor]*safetensors.Streamed, more map[string]string) error {
	metadata := map[string]string{formatKey: checkpointFormat}
	put := func(key string, v any) error {
		text, err := json.Marshal(v)
		metadata[key] = string(text)
		return err
	}
	var tensors []safetensors.Named
	var streamed []safetensors.Streamed
	if c.Model != nil {
		state, err := nn.StateDict(c.Model)
		if err != nil {
			return err
		}
		for _, t := range state {
			tensors = append(tensors, safetensors.Named{Name: modelPrefix + t.Name, Tensor: t.Tensor})
		}
	}
	if c.Optimizer != nil {
		o, err := optim.CoreOf(c.Optimizer)
		if err != nil {
			return err
		}
		record := o.Record()
		if err := put(optimizerKey, record); err != nil {
			return err
		}
		for i, n := range record.Tensors {
			if n > 0 && whole == nil && shardedOf(o, i) != nil {
				return fmt.Errorf("%w: the optimiser's state is sharded: set Checkpoint.Ranks", autograd.ErrInvalid)
			}
			for _, t := range tensorsOf(o, i, n) {
				if w := whole[t.Tensor]; w != nil {
					streamed = append(streamed, *w)
				} else {
					tensors = append(tensors, t)
				}
			}
		}
	}
	if !check.Nil(c.Scheduler) {
		if err := put(schedulerKey, c.Scheduler.Record()); err != nil {
			return err
		}
	}
	if c.Init != nil {
		state, err := c.Init.RandomState()
		if err == nil {
			err = put(randomKey, state)
		}
		if err != nil {
			return err
		}
	}
	if c.State != nil {
		if err := put(stateKey, c.State); err != nil {
			return fmt.Errorf("the program's state: %w", err)
		}
	}
	maps.Copy(metadata, more)
	return safetensors.WriteFile(ctx, path, tensors, metadata, streamed...)
}

const modelPrefix = "model."

// Load sets all parts that are not nil from the file, which must contain them. The model, the
// optimiser and the scheduler must be constructed like those that were saved. If the file is
// truncated, is not a checkpoint, or has other tensors, shapes or groups or a State of another
// type, Load changes nothing. Only an error of reading, of a copy, or of memory for the optimiser's
// state may leave a part loaded.
func (c Checkpoint) Load(ctx context.Context, path string) error {
	if err := check.Context("checkpoint: Load", ctx); err != nil {
		return err
	}
	err := c.open(ctx, path)
	if !check.Nil(c.Ranks) {
		err = agree(tensor.Detached(ctx), c.Ranks, "loading the checkpoint", err)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: Load: %w", err)
	}
	return nil
}

func (c Checkpoint) open(ctx context.Context, path string) error {
	// Save writes headers up to the format's limit.
	f, err := safetensors.Open(path, safetensors.MaxHeader(safetensors.GreatestHeader))
	if err != nil {
		return err
	}
	if err := errors.Join(c.load(ctx, f), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (c Checkpoint) load(ctx context.Context, f *safetensors.File) error {
	metadata := f.Metadata()
	if metadata[formatKey] != checkpointFormat {
		return fmt.Errorf("%w: the file is not a checkpoint: its format is %q, want %q", safetensors.ErrState, metadata[formatKey], checkpointFormat)
	}
	get := func(key string, v any) error {
		text, ok := metadata[key]
		if !ok {
			return fmt.Errorf("%w: the checkpoint has no %s", safetensors.ErrState, key)
		}
		if err := json.Unmarshal([]byte(text), v); err != nil {
			return fmt.Errorf("%w: the checkpoint's %s: %w", safetensors.ErrState, key, err)
		}
		return nil
	}
	var all []safetensors.Named
	var apply []func()
	if c.Model != nil {
		state, err := nn.StateDict(c.Model)
		if err != nil {
			return err
		}
		for _, t := range state {
			all = append(all, safetensors.Named{Name: modelPrefix + t.Name, Tensor: t.Tensor})
		}
		if err := f.Check(all, under(f, modelPrefix)); err != nil {
			return err
		}
	}
	var o *optim.Base
	var r optim.Record
	if c.Optimizer != nil {
		var err error
		if o, err = optim.CoreOf(c.Optimizer); err != nil {
			return err
		}
		if err := get(optimizerKey, &r); err != nil {
			return err
		}
		if err := checkOptimizer(o, r, f); err != nil {
			return err
		}
	}
	if !check.Nil(c.Scheduler) {
		var s optim.SchedulerRecord
		if err := get(schedulerKey, &s); err != nil {
			return err
		}
		if err := c.Scheduler.CheckRecord(s); err != nil {
			return fmt.Errorf("%w: %w", safetensors.ErrState, err)
		}
		apply = append(apply, func() { c.Scheduler.Restore(s) })
	}
	if c.Init != nil {
		var state []byte
		key := randomKey
		if !check.Nil(c.Ranks) {
			key = randomKeyOf(c.Ranks.Rank())
		}
		_, own := metadata[key]
		if !own {
			key = randomKey
		}
		if err := get(key, &state); err != nil {
			return err
		}
		if err := new(rand.PCG).UnmarshalBinary(state); err != nil {
			return fmt.Errorf("%w: the random state: %w", safetensors.ErrState, err)
		}
		apply = append(apply, func() {
			if own {
				_ = c.Init.SetRandomState(state) // state was checked above
			} else {
				c.seedRank(state)
			}
		})
	}
	if c.State != nil {
		v := reflect.ValueOf(c.State)
		if v.Kind() != reflect.Pointer || v.IsNil() {
			return fmt.Errorf("%w: the program's state is a %T: want a non-nil pointer", autograd.ErrInvalid, c.State)
		}
		// An error of decoding may leave a part decoded, so a new value is tried first.
		if err := get(stateKey, reflect.New(v.Type().Elem()).Interface()); err != nil {
			return err
		}
		apply = append(apply, func() { _ = get(stateKey, c.State) })
	}
	if o != nil {
		if err := o.Restore(ctx, r); err != nil {
			return err
		}
		for i, n := range r.Tensors {
			if sh := shardedOf(o, i); sh == nil {
				all = append(all, tensorsOf(o, i, n)...)
			} else if err := loadParts(ctx, f, o, i, sh); err != nil {
				return err
			}
		}
	}
	if err := f.LoadAll(ctx, all); err != nil {
		return err
	}
	for _, f := range apply {
		f()
	}
	return nil
}

// under returns the tensors whose names begin with prefix.
func under(f *safetensors.File, prefix string) (infos []safetensors.Info) {
	for _, info := range f.Tensors() {
		if strings.HasPrefix(info.Name, prefix) {
			infos = append(infos, info)
		}
	}
	return infos
}

// slotName returns the name of a tensor of an optimiser's state.
func slotName(o *optim.Base, i, k int) string {
	return fmt.Sprintf("optimizer.%d.%s", i, o.Slots(i)[k].Name)
}

// tensorsOf returns the first n tensors of the state of the i-th parameter.
func tensorsOf(o *optim.Base, i, n int) (all []safetensors.Named) {
	for k, t := range o.State(i)[:n] {
		all = append(all, safetensors.Named{Name: slotName(o, i, k), Tensor: t})
	}
	return all
}

// checkOptimizer compares an optimiser with a record and with the tensors of the file.
func checkOptimizer(o *optim.Base, r optim.Record, f *safetensors.File) error {
	if err := o.CheckRecord(r); err != nil {
		return fmt.Errorf("%w: %w", safetensors.ErrState, err)
	}
	known := 0
	for i, n := range r.Tensors {
		for k := range n {
			like := []safetensors.Named{{Name: slotName(o, i, k), Tensor: o.Parameters()[i].Value()}}
			if err := f.Check(like, nil); err != nil {
				return err
			}
		}
		known += n
	}
	if infos := under(f, "optimizer."); len(infos) != known {
		return fmt.Errorf("%w: the file has %d tensors of the optimiser: want %d", safetensors.ErrState, len(infos), known)
	}
	return nil
}
