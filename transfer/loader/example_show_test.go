package loader_test

import (
	"context"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"

	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// show prints a field of the batches of an epoch: the loop of a program that trains.
func show[N transfer.Number, T any](b *loader.Batcher[T], field int, format string) error {
	ctx := context.Background()
	cache, pool, stream, closeAll := setUp()
	defer closeAll()
	l, err := loader.New(ctx, pool, loader.Config{Cache: cache, Compute: stream, Fields: b.Capacities()})
	if err != nil {
		return err
	}
	defer l.Close()
	for batch, err := range b.From(ctx, l, loader.Position{}) {
		if err != nil {
			return err
		}
		mem := make([]byte, batch.Bytes(field))
		if err := pool.Download(ctx, stream, mem, batch.Field(field), 0); err != nil {
			return err
		}
		numbers, err := transfer.View[N](mem)
		if err != nil {
			return err
		}
		fmt.Printf(format, numbers)
	}
	return nil
}

// drawPictures makes a folder with five pictures of each class.
func drawPictures(classes ...string) string {
	folder, _ := os.MkdirTemp("", "pictures")
	for c, class := range classes {
		os.Mkdir(filepath.Join(folder, class), 0o700)
		for i := range 5 {
			img := image.NewGray(image.Rect(0, 0, 20+i, 30-i))
			for k := range img.Pix {
				img.Pix[k] = uint8(100*c + k%40)
			}
			f, _ := os.Create(filepath.Join(folder, class, fmt.Sprint(i, ".png")))
			png.Encode(f, img)
			f.Close()
		}
	}
	return folder
}
