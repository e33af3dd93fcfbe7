package gpuop

import (
	"fmt"
	"sync"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/backend"
	"github.com/cistern-ml/cistern/tensor/internal/ptx"
)

// name is a kernel's name in the PTX, without its suffix.
type name uint16

// texts are the names. The first one is of no kernel.
var texts = []string{""}

func named(text string) name {
	texts = append(texts, text)
	return name(len(texts) - 1)
}

// suffix ends a kernel's name: that of a dtype, of the size of an element, or none, which is that of backend.NoDtype.
type suffix uint8

const suffixes = suffix(backend.Dtypes) + 4

var suffixText = func() (all [suffixes]string) {
	for d := range backend.Dtypes {
		all[d] = d.Suffix()
		if d.Size() > 0 {
			all[sized(d.Size())] = fmt.Sprint("_", d.Size())
		}
	}
	return all
}()

// sized is the suffix of elements of 1, 2, 4 or 8 bytes, which move whatever they are.
func sized(size int) suffix {
	s := suffix(backend.Dtypes)
	for ; size > 1; size /= 2 {
		s++
	}
	return s
}

// editions are the kernels that the PTX has, by name and suffix.
var editions = sync.OnceValue(func() [][suffixes]bool {
	all := make([][suffixes]bool, len(texts))
	for n, text := range texts {
		for s, end := range suffixText {
			all[n][s] = ptx.Find(text+end) != nil
		}
	}
	return all
})

// has reports whether there is a kernel for a dtype.
func (n name) has(d backend.Dtype) bool { return editions()[n][d] }

// What a kernel's suffix is for a dtype.
func byDtype(d backend.Dtype) suffix { return suffix(d) }
func bySize(d backend.Dtype) suffix  { return sized(d.Size()) }
func byNone(backend.Dtype) suffix    { return suffix(backend.NoDtype) }

// kernel is a function of a module, which is loaded at the first time.
func (b *Backend) kernel(n name, s suffix) (any, error) {
	at := &b.kernels[n][s]
	if k := at.Load(); k != nil {
		return *k, nil
	}
	text := texts[n] + suffixText[s]
	image := ptx.Find(text)
	if image == nil {
		return nil, fmt.Errorf("%w: there is no kernel %s", backend.ErrUnsupported, text)
	}
	m, err := b.module(image)
	if err != nil {
		return nil, err
	}
	k, err := m.Kernel(text)
	if err != nil {
		return nil, err
	}
	at.Store(&k)
	return k, nil
}

// module loads an image, which the driver may have to compile, without a lock: goroutines that need it wait for it alone.
func (b *Backend) module(image *ptx.Image) (device.Module, error) {
	b.mu.Lock()
	load := b.modules[image]
	if load == nil {
		load = sync.OnceValues(func() (device.Module, error) {
			m, err := b.dev.LoadModule(image.PTX)
			if err != nil {
				b.mu.Lock()
				defer b.mu.Unlock()
				delete(b.modules, image) // the next call tries again
				return nil, fmt.Errorf("%s: %w", image.Name, err)
			}
			return m, nil
		})
		b.modules[image] = load
	}
	b.mu.Unlock()
	return load()
}
