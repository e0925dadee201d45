package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// Hasher digests a plan as its sessions are handed out. Only whole numbers and
// names go in, each in a fixed width or length-prefixed, so that two machines
// of different processors agree.
type Hasher struct {
	h   hash.Hash
	buf []byte
}

// NewHasher returns an empty digest.
func NewHasher() *Hasher { return &Hasher{h: sha256.New()} }

// Add digests one session.
func (p *Hasher) Add(s *Session) {
	b := p.buf[:0]
	i := func(v int64) { b = binary.LittleEndian.AppendUint64(b, uint64(v)) }
	str := func(v string) { i(int64(len(v))); b = append(b, v...) }
	flag := int64(0)
	if s.Scripted {
		flag = 1
	}
	i(s.Seq)
	i(int64(s.Scheduled))
	str(s.Class)
	str(s.Phase)
	i(flag)
	str(s.Tenant)
	i(int64(s.Priority))
	str(s.Model)
	for _, turns := range [][]Turn{s.History, s.Turns} {
		i(int64(len(turns)))
		for _, t := range turns {
			i(int64(t.Index))
			i(int64(t.At))
			i(int64(t.Think))
			i(int64(t.InputTokens))
			i(int64(t.OutputTokens))
			i(int64(t.Timeout))
			i(int64(t.HangUp))
			i(int64(t.Prompt.Seed))
			i(t.Prompt.Item)
			i(int64(t.Prompt.PrefixID))
			i(int64(t.Prompt.PrefixTokens))
			i(int64(t.Prompt.BlockTokens))
			i(int64(len(t.Prompt.Blocks)))
			for _, id := range t.Prompt.Blocks {
				i(int64(id))
			}
		}
	}
	p.h.Write(b)
	p.buf = b
}

// Sum returns the digest of all sessions added so far, in hex.
func (p *Hasher) Sum() string { return hex.EncodeToString(p.h.Sum(nil)) }
