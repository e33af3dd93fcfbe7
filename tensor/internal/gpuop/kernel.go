package gpuop

import (
	"fmt"
	"sync"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/ptx"
)

// name is a kernel's name in the PTX, without its suffix.
type name uint16

// texts holds the names; 0 is not a kernel.
var texts = []string{""}

func named(text string) name {
	texts = append(texts, text)
	return name(len(texts) - 1)
}

// namedBy returns the names of kernels that also contain the dtype of another operand.
func namedBy(prefix string, dtypes ...backend.Dtype) (all [backend.Dtypes]name) {
	for _, d := range dtypes {
		all[d] = named(prefix + d.Suffix())
	}
	return all
}

// editions holds the full names of the PTX's kernels by name and dtype. A name ends with the dtype,
// with the size of an element if the kernel moves elements of any type, or with neither.
var editions = sync.OnceValue(func() [][backend.Dtypes]string {
	all := make([][backend.Dtypes]string, len(texts))
	for n, text := range texts {
		for d := range backend.Dtypes {
			for _, edition := range [...]string{text, fmt.Sprint(text, "_", d.Size()), text + d.Suffix()} {
				if ptx.Find(edition) != nil {
					all[n][d] = edition
				}
			}
		}
	}
	return all
})

// has reports whether there is a kernel for dtype d.
func (n name) has(d backend.Dtype) bool { return editions()[n][d] != "" }

// kernel returns a kernel's handle. The first call loads the kernel's module.
func (b *Backend) kernel(n name, d backend.Dtype) (any, error) {
	at := &b.kernels[n][d]
	if k := at.Load(); k != nil {
		return *k, nil
	}
	text := editions()[n][d]
	if text == "" {
		return nil, fmt.Errorf("%w: there is no kernel %s", backend.ErrUnsupported, texts[n]+d.Suffix())
	}
	return b.modules.Kernel(at, ptx.Find(text), text)
}
