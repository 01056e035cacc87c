"""A small extension for Macs, by zig's compiler and linker: 49,784 bytes, most of them zero.

extern void *PyModule_Create2(void *, int);
void *PyInit__core(void) { return PyModule_Create2((void *)0, 1013); }

zig cc -target aarch64-macos.11.0 -Os -s -dynamiclib -undefined dynamic_lookup
    -install_name @rpath/_core.so
"""

from __future__ import annotations

import base64
import zlib

__all__ = ["MAC_EXTENSION"]

_PACKED = (
    "c-rmUUuauZ9Ki8kZ<8)!tSPj#I*X;uSyxE6F=5zM+jXO@oBiYZP?_VHELjtmCN;U$2H6NA(g$(fKo|}Y!I$C7aE|Ul"
    "v2*yaIkutVgWxupuz?7(l)3g{^W5a5-lpyJO~LO6PVV{LbMNo|?(Zfq_aT?&f4l1!DHE+ikANQ6JR)!BXCja2F`-wL"
    "8r(iKC`(M%EFXK#@R<Ed+0k+Puj7{FGw0R0V#}S_BRO}dRK^|)XI9KtXY%=7u{)p7<nu4er()5>Xf(Y{zBMM_8drS("
    "`o@xP#FG&fPwq=Clds$4>vqMKtju{1NAr2Mbqsc>&c5DVg>3ESeu@W{#N}p`nP;oiaLQg(=ilcmcO740a=Giexsb=T"
    "V7d`lAuiTsE!2?+sZ4exoJy!sJH28)pDT9PwMrKEPpL@A4wc@g>-m@D^OfXVuK(TnJUe@OcWmF*Q+$@wi~C-T$4xP1"
    "CH-pDm9IC)IoI}07ryfi=DY?IZ`Rv>y<Ka1HeuGEDv2%gn{i^N2fj1<+Ist-6wWUmW0`(?<^JEZJJZYeq0*_%{9and"
    "GU=8?Jlqn=CL(72Aw8N*Etc!f+tZ^VJJzE1rqa=1CME0K-wAD_$y?}=Q}ycn+-ufXo1ATzU;XCD*)6^=t1{<)SaY(="
    "sblk^>-Bk^EDN>iu`8Rgqa(qsL0xA&T*y~%uAkF=x+4Gp0002s{~`C?#|LvSdPJ%NB9nn|^<l9d|8c#@t$@`&=gc?g"
    "`G!V0e5>oL;{n(Hev!Jld-rOcEY3TN$4o}|Hvev-Mr4x|hTpvRbLP%_mViFfUwHdr@hkuU00000000000000000000"
    "00000000000000000000000000RH>7)X)O}00000000000000000000000000091NRgE&>Y+sZ1NH!5s8G9_O!trDz"
    "nwEj8Nl8n)>d(HAii{<qsxuu8+0l*i?4(GU60cbO*`8$FR%&l59hEvI_2rUVCt{7nluj29t5`JTq-s-<OiIN<$w(q9"
    "ogSIUSyK2k%JitzAAa+H1pA$Mm547_h#%GCVdo&TzQc)K>w8M#CX=)1nL@m<%d1C)+2$>|OQr1CSaQF!;JU}9%~;Yl"
    "rAqH!DfjK?PZ&+dU)QJ0{1yMSzWS`I+-kkg>B}{-Ji3+Q%wN%C$gJy~XL1deRQ|IkTr*jm+3{pHm`TZ@t8bpDojLvc"
    "6SeQxeCBI7HMRBl&8b7*cKq`FPtEngp<v&QQy<*E(z<W=@c6r5&mBGT>01ZquYWSUsk!y@>tDRL`|icE=N~vWYxzFx"
    "o;q;hxp(XXYkxkUIBgBQe0wJLQuF0sci!-{UA=JrV(%YkTbrJ&o9+5&`qI;Ts^iCIW-6Lao@;Yz`4jn7Fzo"
)

MAC_EXTENSION = zlib.decompress(base64.b85decode(_PACKED))
