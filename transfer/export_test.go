package transfer

import "github.com/cistern-ml/cistern/device"

// NewOfShards is New of a pool with so many shards.
func NewOfShards(dev device.Device, cfg Config, shards int) *Pool { return newPool(dev, cfg, shards) }

// UseShard lets this processor's next calls use shard i.
func (p *Pool) UseShard(i int) {
	p.cache.hints.Get()
	p.cache.hints.Put(p.cache.shards[i%len(p.cache.shards)])
}

// RoundSize is roundSize.
func RoundSize(bytes int64) int64 { return roundSize(bytes) }
