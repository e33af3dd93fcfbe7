package torchfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/nlpodyssey/gopickle/pickle"
	"github.com/nlpodyssey/gopickle/types"
)

// classes are those that a pickle may name. The unpickler implements OrderedDict itself.
var classes = map[string]any{
	"collections.OrderedDict":         nil,
	"torch._utils._rebuild_tensor_v2": function(rebuildTensor),
	"torch._utils._rebuild_parameter": function(rebuildParameter),
	"torch.DoubleStorage":             storageClass{"F64", 8},
	"torch.FloatStorage":              storageClass{"F32", 4},
	"torch.HalfStorage":               storageClass{"F16", 2},
	"torch.BFloat16Storage":           storageClass{"BF16", 2},
	"torch.LongStorage":               storageClass{"I64", 8},
	"torch.IntStorage":                storageClass{"I32", 4},
	"torch.ShortStorage":              storageClass{"I16", 2},
	"torch.CharStorage":               storageClass{"I8", 1},
	"torch.ByteStorage":               storageClass{"U8", 1},
	"torch.BoolStorage":               storageClass{"BOOL", 1},
}

// storageClass is a dtype, by its name in safetensors, and the size of an element.
type storageClass struct {
	dtype string
	bytes int
}

// storage is a file of the archive: n elements, of which tensors are views.
type storage struct {
	storageClass
	data *io.SectionReader
	n    int
}

// function is a Python function.
type function func(args []any) (any, error)

func (f function) Call(args ...any) (any, error) { return f(args) }

// unpickle reads the archive's value. It recovers, because the unpickler panics on some corrupt
// pickles.
func (a *archive) unpickle() (value any, err error) {
	text, err := a.read("data.pkl", maxPickle)
	if err != nil {
		return nil, err
	}
	if err := scan(text); err != nil {
		return nil, err
	}
	defer func() {
		if r := recover(); r != nil {
			value, err = nil, formatError("its pickle is corrupt: %s", clip(fmt.Sprint(r)))
		}
	}()
	storages := map[string]*storage{}
	u := pickle.NewUnpickler(bytes.NewReader(text))
	u.FindClass = func(module, name string) (any, error) { return classes[module+"."+name], nil }
	u.PersistentLoad = func(id any) (any, error) { return a.storage(id, storages) }
	if value, err = u.Load(); err != nil && !errors.Is(err, ErrFormat) {
		err = formatError("its pickle is corrupt: %s", clip(err.Error()))
	}
	return value, err
}

// clip shortens a text of the file for an error.
func clip(text string) string { return text[:min(len(text), 200)] }

// storage returns the storage of a pickle's reference: ("storage", class, key, device, elements).
func (a *archive) storage(id any, known map[string]*storage) (any, error) {
	tuple, _ := id.(*types.Tuple)
	if tuple == nil || tuple.Len() != 5 || tuple.Get(0) != "storage" {
		return nil, formatError("its pickle refers to something that is not a storage")
	}
	class, isClass := tuple.Get(1).(storageClass)
	key, isKey := tuple.Get(2).(string)
	n, isNumber := tuple.Get(4).(int)
	if !isClass || !isKey || !isNumber {
		return nil, formatError("its pickle refers to a storage without class, key or size")
	}
	s := known[key]
	if s == nil {
		data, err := a.section("data/" + key)
		if err != nil {
			return nil, err
		}
		if n < 0 || int64(n) > data.Size()/int64(class.bytes) {
			return nil, formatError("storage %q has %d bytes, too few for %d numbers of %s", clip(key), data.Size(), n, class.dtype)
		}
		s = &storage{class, data, n}
		known[key] = s
	}
	if s.storageClass != class || s.n != n {
		return nil, formatError("storage %q is %d numbers of %s, and %d of %s", clip(key), s.n, s.dtype, n, class.dtype)
	}
	return s, nil
}

// rebuildTensor implements _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks,
// …).
func rebuildTensor(args []any) (any, error) {
	if len(args) < 6 {
		return nil, formatError("a tensor of %d values: want at least 6", len(args))
	}
	s, isStorage := args[0].(*storage)
	offset, isNumber := args[1].(int)
	shape, err1 := numbers(args[2])
	strides, err2 := numbers(args[3])
	if !isStorage || !isNumber || err1 != nil || err2 != nil {
		return nil, formatError("a tensor without storage, offset, shape or strides")
	}
	return newView(s, offset, shape, strides)
}

// rebuildParameter implements _rebuild_parameter(data, requires_grad, hooks).
func rebuildParameter(args []any) (any, error) {
	if len(args) < 1 {
		return nil, formatError("a parameter without a tensor")
	}
	v, ok := args[0].(*view)
	if !ok {
		return nil, formatError("a parameter of %T: want a tensor", args[0])
	}
	return v, nil
}

// maxDims is more dimensions than any tensor has.
const maxDims = 32

func numbers(v any) ([]int, error) {
	tuple, _ := v.(*types.Tuple)
	if tuple == nil || tuple.Len() > maxDims {
		return nil, ErrFormat
	}
	all := make([]int, tuple.Len())
	for i := range all {
		n, ok := tuple.Get(i).(int)
		if !ok {
			return nil, ErrFormat
		}
		all[i] = n
	}
	return all, nil
}
